/**
 * Judges what this machine allows: open files, waiting connections, disk, clock. A start and `npm run doctor` print the
 * sentences. `readMachine` only reads; `judgeMachine` decides, so that each rule can be tested without such a machine.
 */
import { existsSync, readFileSync, statfsSync, statSync } from 'node:fs';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { counted } from '../../base/counted.ts';
import { fileLimitFault, filesForConnections, openFilesMax, raiseFileLimit } from '../../base/file-limit.ts';
import type { Config } from '../../base/settings/config.ts';
import { sizeText } from '../../base/size-text.ts';
import { clockFile } from './data-files.ts';

export interface Finding {
  subject: string;
  level: 'ok' | 'warning' | 'fault';
  /** One sentence; a warning or a fault ends with what to do. */
  says: string;
  /** True when a start cannot succeed, and the fault of the start would not name the cause. */
  endsStart?: true;
}

export interface Machine {
  openFilesMax: number;
  /** Undefined where the kernel does not show the value. */
  somaxconn: number | undefined;
  disk: Disk | undefined;
  clock: {
    now: number;
    /** A time that has certainly passed: this program was built, or this directory was in use. */
    passed: number;
    /** True when a time service says that it has set the clock; undefined when that is not known. */
    synchronized: boolean | undefined;
  };
}

interface Disk {
  freeBytes: number;
  /** File names that are free; Infinity where the file system has no such limit. */
  freeFiles: number;
  /** `statfs` of Linux: the kind of the file system. */
  type: number;
}

const fewConnections = 10_000;
const somaxconnMin = 4096;
const freeFilesMin = 10_000;
const littleRoomBytes = 1024 ** 3;
const clockToleranceMs = 60_000;
/** Kinds of file systems, as `linux/magic.h` numbers them. */
const memoryTypes = new Set([0x01021994, 0x858458f6]);
const containerType = 0x794c7630;
const networkTypes = new Map([
  [0x6969, 'NFS'],
  [0xff534d42, 'CIFS'],
  [0xfe534d42, 'SMB'],
  [0x01021997, '9p'],
  [0x65735546, 'FUSE'],
]);
/** Exists once systemd-timesyncd has set the clock; other time services leave no such file. */
const timesyncMark = '/run/systemd/timesync/synchronized';
const program = fileURLToPath(import.meta.url);

/** `dataDir` must exist. */
export function readMachine(dataDir: string): Machine {
  return {
    openFilesMax: openFilesMax(),
    somaxconn: readNumber('/proc/sys/net/core/somaxconn'),
    disk: readDisk(dataDir),
    clock: {
      now: Date.now(),
      passed: Math.max(changedMs(program), changedMs(join(dataDir, clockFile))),
      synchronized: existsSync(timesyncMark) || undefined,
    },
  };
}

function readNumber(path: string): number | undefined {
  try {
    return Number(readFileSync(path, 'utf8'));
  } catch {
    return undefined;
  }
}

function readDisk(dir: string): Disk | undefined {
  try {
    const { bavail, bsize, files, ffree, type } = statfsSync(dir);
    // A negative number of 32 bits on some systems.
    return { freeBytes: bavail * bsize, freeFiles: files === 0 ? Number.POSITIVE_INFINITY : ffree, type: type >>> 0 };
  } catch {
    return undefined;
  }
}

function changedMs(path: string): number {
  return statSync(path, { throwIfNoEntry: false })?.mtimeMs ?? 0;
}

export function judgeMachine(machine: Machine, config: Config, workers: number): Finding[] {
  return [
    judgeFiles(machine.openFilesMax, config),
    judgeQueue(machine.somaxconn),
    ...(machine.disk ? judgeDisk(machine.disk, config, workers) : []),
    judgeClock(machine.clock),
  ];
}

function judgeFiles(filesMax: number, { http, mqtt }: Config): Finding {
  const subject = 'file limit';
  const allowed = filesForConnections(filesMax);
  const fault = fileLimitFault(filesMax);
  if (fault !== undefined) return { subject, level: 'fault', says: fault, endsStart: true };
  for (const [name, wanted] of [
    ['HTTP_CONNECTIONS_MAX', http.connectionsMax],
    ['MQTT_CONNECTIONS_MAX', mqtt.connectionsMax],
  ] as const) {
    if (wanted > allowed) {
      return {
        subject,
        level: 'warning',
        says: `${name} is ${wanted}, and the file limit of ${filesMax} allows ${allowed} per worker: ${raiseFileLimit}.`,
      };
    }
  }
  const connections = `${allowed} connections per worker`;
  if (allowed >= fewConnections)
    return { subject, level: 'ok', says: `${connections} (the file limit is ${filesMax}).` };
  return {
    subject,
    level: 'warning',
    says: `${connections}, because the file limit is ${filesMax}: ${raiseFileLimit}.`,
  };
}

function judgeQueue(somaxconn: number | undefined): Finding {
  const subject = 'new connections';
  if (somaxconn === undefined) return { subject, level: 'ok', says: 'The kernel does not tell net.core.somaxconn.' };
  const waiting = `${somaxconn} new connections may wait at each port (net.core.somaxconn)`;
  if (somaxconn >= somaxconnMin) return { subject, level: 'ok', says: `${waiting}.` };
  const advice = `when many devices connect at once, others fail: set it to ${somaxconnMin} or more with sysctl`;
  return { subject, level: 'warning', says: `${waiting}; ${advice}.` };
}

function judgeDisk({ freeBytes, freeFiles, type }: Disk, { ingest }: Config, workers: number): Finding[] {
  const subject = 'disk';
  const { freeDiskBytesMin, backlogBytesMax } = ingest.journal;
  const room = Math.max(0, freeBytes - freeDiskBytesMin);
  const allowed = backlogBytesMax * workers;
  const free = `${sizeText(freeBytes)} free`;
  const found: Finding[] = [];
  if (room === 0) {
    const says = `${free}: telemetry is refused below ${sizeText(freeDiskBytesMin)} (JOURNAL_FREE_DISK_BYTES_MIN). Free space.`;
    found.push({ subject, level: 'fault', says });
  } else if (room < Math.min(littleRoomBytes, allowed)) {
    const says = `${free}: the journals have room for ${sizeText(room)} when ClickHouse does not answer. Free space.`;
    found.push({ subject, level: 'warning', says });
  } else {
    const most = `${sizeText(allowed)} that JOURNAL_BACKLOG_BYTES_MAX allows (${counted(workers, 'worker')})`;
    const says =
      room >= allowed
        ? `${free}: the journals have room for all ${most}.`
        : `${free}: the journals have room for ${sizeText(room)} of the ${most}.`;
    found.push({ subject, level: 'ok', says });
  }
  if (freeFiles < freeFilesMin) {
    const says = `Only ${freeFiles} more files can be made on the disk of DATA_DIR (inodes): remove files.`;
    found.push({ subject, level: 'warning', says });
  }
  const kind = kindOf(type);
  if (kind !== '') found.push({ subject, level: 'warning', says: kind });
  return found;
}

/** Returns what is wrong with a file system of this kind; '' when nothing is. */
function kindOf(type: number): string {
  if (memoryTypes.has(type)) return 'DATA_DIR is in memory and is lost with the machine: put it on a disk.';
  if (type === containerType) {
    return 'DATA_DIR is in the layer of a container and is lost with the container: mount a volume there.';
  }
  const network = networkTypes.get(type);
  if (network === undefined) return '';
  return `DATA_DIR is on ${network}, which may lose what it calls synced, and may not lock: use a local disk.`;
}

function judgeClock({ now, passed, synchronized }: Machine['clock']): Finding {
  const subject = 'clock';
  const at = new Date(now).toISOString();
  if (now < passed - clockToleranceMs) {
    const says = `The clock is wrong: it says ${at}, and ${new Date(passed).toISOString()} has passed. Set it (NTP).`;
    return { subject, level: 'warning', says };
  }
  if (synchronized === false) {
    return { subject, level: 'warning', says: `${at}, and no time service sets the clock: start one (NTP).` };
  }
  const known = synchronized ? 'a time service sets the clock' : 'whether a time service sets the clock is not known';
  return { subject, level: 'ok', says: `${at}; ${known}.` };
}
