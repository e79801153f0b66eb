import { tmpdir } from 'node:os';
import { expect, test } from 'vitest';
import { loadConfig } from '../../base/settings/config.ts';
import { judgeMachine, type Machine, readMachine } from './machine.ts';

const gib = 1024 ** 3;
const now = Date.UTC(2030, 1, 1);
const ext4 = 0xef53;

const large: Machine = {
  openFilesMax: 1_048_576,
  somaxconn: 4096,
  disk: { freeBytes: 100 * gib, freeFiles: 1_000_000, type: ext4 },
  clock: { now, passed: now - 1000, synchronized: true },
};

/** Returns the sentences that a machine without faults does not have. */
function warned(machine: Partial<Machine>, environment: Record<string, string> = {}, workers = 2): string[] {
  const found = judgeMachine({ ...large, ...machine }, loadConfig(environment), workers);
  return found.filter(({ level }) => level !== 'ok').map(({ level, says }) => `${level}: ${says}`);
}

function diskOf(changed: object): Partial<Machine> {
  return { disk: { ...large.disk!, ...changed } };
}

test('a machine that allows all says what it allows', () => {
  expect(warned({})).toEqual([]);
  const says = judgeMachine(large, loadConfig({}), 2).map((finding) => finding.says);
  expect(says[0]).toMatch(/^1048320 connections per worker /);
  expect(says[2]).toMatch(/^100 GiB free: the journals have room for all 32 GiB .*2 workers/);
});

test('a low file limit is named with the connections that it allows', () => {
  expect(warned({ openFilesMax: 512 })).toEqual([
    expect.stringMatching(/^warning: 256 connections per worker, because the file limit is 512: raise it /),
  ]);
  expect(warned({ openFilesMax: 20_000 }, { MQTT_CONNECTIONS_MAX: '50000' })).toEqual([
    expect.stringMatching(/MQTT_CONNECTIONS_MAX is 50000, and the file limit of 20000 allows 19744 per worker: raise/),
  ]);
});

test('a file limit with which no worker can start ends the start', () => {
  const [files] = judgeMachine({ ...large, openFilesMax: 511 }, loadConfig({}), 2);
  expect(files).toMatchObject({
    level: 'fault',
    endsStart: true,
    says: expect.stringMatching(/limit is 511.* needs 512/),
  });
});

test('a short queue of new connections is named', () => {
  expect(warned({ somaxconn: 128 })).toEqual([expect.stringMatching(/^warning: 128 new connections .*4096 or more/)]);
  expect(warned({ somaxconn: undefined })).toEqual([]);
});

test('a small disk, a disk without inodes, and a disk that is none are named', () => {
  expect(warned(diskOf({ freeBytes: gib / 2 }))).toEqual([
    expect.stringMatching(/^fault: 512 MiB free: telemetry is refused below 1 GiB \(JOURNAL_FREE_DISK_BYTES_MIN\)/),
  ]);
  expect(warned(diskOf({ freeBytes: 1.5 * gib }))).toEqual([expect.stringMatching(/^warning: .*room for 512 MiB/)]);
  expect(warned(diskOf({ freeFiles: 12 }))).toEqual([expect.stringContaining('Only 12 more files')]);
  expect(warned(diskOf({ type: 0x01021994 }))).toEqual([expect.stringContaining('in memory')]);
  expect(warned(diskOf({ type: 0x794c7630 }))).toEqual([expect.stringContaining('mount a volume')]);
  expect(warned(diskOf({ type: 0x6969 }))).toEqual([expect.stringContaining('NFS')]);
  const [, , disk] = judgeMachine({ ...large, ...diskOf({ freeBytes: 11 * gib }) }, loadConfig({}), 2);
  expect(disk!.says).toMatch(/room for 10 GiB of the 32 GiB/);
  const small = { JOURNAL_FREE_DISK_BYTES_MIN: '100MiB' };
  expect(warned(diskOf({ freeBytes: 60 * 1024 ** 2 }), small)).toEqual([
    expect.stringMatching(/^fault: 60 MiB free: telemetry is refused below 100 MiB /),
  ]);
});

test('a clock that is behind a time that has passed, and one that no service sets, are named', () => {
  const clock = large.clock;
  expect(warned({ clock: { ...clock, passed: now + 120_000 } })).toEqual([
    expect.stringMatching(/says 2030-02-01T00:00:00\.000Z, and 2030-02-01T00:02:00\.000Z has passed/),
  ]);
  expect(warned({ clock: { ...clock, synchronized: false } })).toEqual([expect.stringContaining('NTP')]);
  expect(warned({ clock: { ...clock, synchronized: undefined } })).toEqual([]);
});

test('this machine can be read', () => {
  const { disk, somaxconn, openFilesMax } = readMachine(tmpdir());
  expect(disk!.freeBytes).toBeGreaterThan(0);
  expect(somaxconn).toBeGreaterThan(0);
  expect(openFilesMax).toBeGreaterThan(0);
});
