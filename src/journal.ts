/**
 * `npm run journal`: shows the waiting rows in the journals of DATA_DIR, and ships them. `list` shows every journal,
 * `verify [NAME]` reads every waiting frame, `show NAME` lists the waiting frames, `show NAME SEGMENT` all frames of a
 * segment with their rows. `ship DIR` ships the journal of a removed host into ClickHouse, `drain` empties a stopped
 * instance before its removal. `list`, `verify` and `show` change nothing and work while Millrace runs.
 */
import { closeSync, existsSync, openSync, readdirSync, statSync } from 'node:fs';
import { basename, dirname, join, resolve } from 'node:path';
import { systemClock as clock } from './base/clock.ts';
import { jsonLine, printLine, runCommand } from './base/command.ts';
import { counted } from './base/counted.ts';
import { messageOf, StartError } from './base/errors.ts';
import { tryLock } from './base/file-lock.ts';
import { createLog } from './base/log.ts';
import { Metrics } from './base/metrics/metrics.ts';
import { systemScheduler } from './base/scheduler.ts';
import { type Config, loadConfig } from './base/settings/config.ts';
import { sizeText } from './base/size-text.ts';
import { reopenTombstones } from './erase/tombstone-store.ts';
import { forgetJournal, readJournals, type StoredJournal } from './ingest/journal-store.ts';
import { orderMs } from './ingest/order-number.ts';
import { DataDirectory } from './instance/host/data-directory.ts';
import { OrphanJournals } from './instance/journals/orphan-journals.ts';
import { openPostgresOf, openShardsOf } from './instance/stores/engines.ts';
import { findInstallation } from './instance/stores/installation.ts';
import { ShardMapFollower } from './instance/stores/shard-map-follower.ts';
import { readInstallation } from './journal/identity.ts';
import { inspectJournal, readSegment, type SegmentReport } from './journal/inspect.ts';
import { listQuarantine } from './journal/quarantine.ts';
import type { Frame } from './journal/reader.ts';
import { laneNames, parseSegmentName } from './journal/segment.ts';
import type { Postgres } from './postgres/client.ts';
import { journalsOf, journalTable, requireJournals } from './support/journal-table.ts';
import { readBlock } from './telemetry/read-block.ts';

const usage = 'usage: npm run journal -- list | verify [NAME] | show NAME [SEGMENT] | ship DIR | drain';
const framesShownMax = 1000;
const progressMs = 5_000;
/** Names of which every journal has at least one, beside its segments. */
const journalNames = new Set(['epoch', 'position', 'writer', 'installation', 'suspects', 'shards', 'quarantine']);

/** Words after each verb. One more is refused: `ship worker-*` would ship the first journal and report success. */
const wordsMax: Record<string, number> = { list: 0, verify: 1, show: 2, ship: 1, drain: 0 };

async function run([verb = 'list', ...words]: string[]): Promise<void> {
  if (words.length > (wordsMax[verb] ?? 0)) throw new StartError(usage);
  const [name, segment] = words;
  const config = loadConfig();
  switch (verb) {
    case 'list':
      requireJournals(config);
      for (const line of await journalTable(config)) printLine(line);
      return;
    case 'verify':
      return verify(name === undefined ? requireJournals(config) : [journalNamed(config, name)]);
    case 'show':
      if (name === undefined) throw new StartError(usage);
      return show(journalNamed(config, name), segment);
    case 'ship':
      if (name === undefined) throw new StartError(usage);
      return shipDirectory(config, resolve(name));
    case 'drain':
      return drain(config);
    default:
      throw new StartError(usage);
  }
}

/** Returns the directory of a name below DATA_DIR, or of a journal that was copied from elsewhere. */
function journalNamed(config: Config, name: string): string {
  const found = journalsOf(config).find((dir) => basename(dir) === name) ?? resolve(name);
  if (!existsSync(found)) throw new StartError(`There is no journal ${name}; \`list\` shows what there is.`);
  return requireJournal(found);
}

/** Refuses any other directory, as one too high: nothing waits there, and "everything is stored" would be false. */
function requireJournal(dir: string): string {
  const names = statSync(dir).isDirectory() ? readdirSync(dir) : [];
  if (names.some((name) => journalNames.has(name) || parseSegmentName(name))) return dir;
  throw new StartError(`${dir} is no journal: name a directory such as DATA_DIR/journal/worker-0, or a copy of one.`);
}

/** Exit code 1 when a stretch of a waiting segment is damaged, or a journal cannot be read. */
async function verify(dirs: string[]): Promise<void> {
  let damaged = 0;
  let unread = 0;
  for (const dir of dirs) {
    try {
      damaged += await verifyOne(dir);
    } catch (error) {
      unread += 1;
      printLine(`${basename(dir)}: cannot be read: ${messageOf(error)}`);
    }
  }
  if (unread > 0) printLine(counted(unread, 'journal cannot be read', 'journals cannot be read'));
  if (damaged > 0) printLine(counted(damaged, 'damaged stretch', 'damaged stretches'));
  if (damaged + unread > 0) process.exitCode = 1;
  else printLine('every frame is whole');
}

/** Returns the number of damaged stretches. */
async function verifyOne(dir: string): Promise<number> {
  const { segments, lost } = await inspectJournal(dir);
  for (const name of lost) printLine(`${basename(dir)} ${name}: the header is damaged, no frame can be read`);
  let damaged = lost.length;
  let frames = 0;
  let rows = 0;
  for (const segment of segments) {
    for await (const step of readSegment(segment)) {
      if (step.kind === 'gap') {
        damaged += 1;
        printLine(`${basename(dir)} ${segment.name}: bytes ${step.from} to ${step.to} hold no valid frame`);
      } else {
        frames += 1;
        rows += step.rows;
      }
    }
  }
  printLine(
    `${basename(dir)}: ${counted(segments.length, 'segment')}, ${counted(frames, 'frame')}, ${counted(rows, 'row')}`,
  );
  return damaged;
}

/** Shows the frames of a journal that wait; with a segment named, all of its frames and their rows. */
async function show(dir: string, name: string | undefined): Promise<void> {
  const { segments, writer } = await inspectJournal(dir);
  const shown = name === undefined ? segments : segments.filter((segment) => segment.name === name);
  if (name !== undefined && shown.length === 0) {
    throw new StartError(`No segment ${name} waits in ${basename(dir)}: it has ${namesOf(segments)}.`);
  }
  printLine(`writer ${writer ?? 'unknown'}, ${counted(segments.length, 'segment')} to ship`);
  let left = framesShownMax;
  let stored = 0;
  for (const segment of shown) {
    for await (const step of readSegment(segment)) {
      const isStored = step.kind === 'frame' && step.offset < segment.waitingFrom[step.lane];
      if (isStored && name === undefined) {
        stored += step.rows > 0 ? 1 : 0;
        continue;
      }
      if (left === 0) {
        printLine(`… only the first ${framesShownMax} frames are shown`);
        return;
      }
      left -= 1;
      if (step.kind === 'gap') printLine(`${segment.name} ${step.from}  damaged up to ${step.to}`);
      else if (step.rows > 0) printFrame(segment, step, { isStored, withRows: name !== undefined });
    }
  }
  if (stored > 0)
    printLine(
      `left out: ${counted(stored, 'frame')} of these segments that ClickHouse has; name a segment to see them`,
    );
}

function printFrame(
  { name }: SegmentReport,
  { offset, lane, order, rows, length, payload }: Frame,
  { isStored, withRows }: { isStored: boolean; withRows: boolean },
): void {
  const at = new Date(orderMs(order)).toISOString();
  const size = `${counted(rows, 'row')}  ${length} bytes`;
  printLine(`${name} ${offset}  ${laneNames[lane]}  order ${order}  ${at}  ${size}${isStored ? '  stored' : ''}`);
  if (withRows) for (const row of readBlock(payload)) printLine(`  ${jsonLine(row)}`);
}

function namesOf(segments: SegmentReport[]): string {
  return segments.length === 0 ? 'none' : segments.map(({ name }) => name).join(', ');
}

/** Ships a journal directory that no instance owns, such as a copy from a removed host. */
async function shipDirectory(config: Config, dir: string): Promise<void> {
  if (!existsSync(dir)) throw new StartError(`There is no directory ${dir}.`);
  requireJournal(dir);
  const lock = join(dirname(dirname(dir)), 'lock');
  const descriptor = existsSync(lock) ? openSync(lock, 'r+') : undefined;
  try {
    if (descriptor !== undefined && !(await tryLock(descriptor, lock))) {
      throw new StartError(`${dir} belongs to an instance that runs: its own workers ship it.`);
    }
    await ship(config, [dir], { mayForget: false });
  } finally {
    if (descriptor !== undefined) closeSync(descriptor);
  }
}

/** Ships all rows that a stopped instance has not sent to its external ClickHouse. */
async function drain(config: Config): Promise<void> {
  if (config.clickhouse.url === '') {
    throw new StartError(
      'drain needs an external ClickHouse (CLICKHOUSE_URL): the embedded one ends with its instance. ' +
        'Start Millrace on this DATA_DIR instead: it ships what waits.',
    );
  }
  requireJournals(config);
  const data = new DataDirectory(config.data.dir);
  await data.take(createLog('warn', 'journal'), 0);
  try {
    await ship(config, journalsOf(config), { mayForget: true });
  } finally {
    data.release();
  }
}

/**
 * Ends when no row waits any more. After a signal the next call continues at the same place. `mayForget`: no process
 * has the journals, even if a report is only seconds old.
 */
async function ship(config: Config, dirs: string[], { mayForget }: { mayForget: boolean }): Promise<void> {
  const log = createLog('warn', 'journal');
  const { segmentBytes } = config.ingest.journal;
  const metrics = new Metrics();
  const postgres = openPostgresOf(config, log);
  let installation: string | undefined;
  try {
    installation = await knownInstallation(postgres);
    await requireOwnRows(dirs, installation);
  } catch (error) {
    await postgres.close();
    throw error;
  }
  const shards = openShardsOf(config, log);
  const follower = shards.isDivided ? new ShardMapFollower({ postgres, shards, clock, log }) : undefined;
  await follower?.start();
  const onStored = async (journal: StoredJournal) => {
    // The directory may be a copy of a journal that is in use.
    if (mayForget || !(await isReported(postgres, journal.writer))) await forgetJournal(postgres, journal);
    // Some rows may have been deleted after they were accepted: a running instance carries these deletes out again.
    await reopenTombstones(postgres);
  };
  const options = {
    dirs,
    segmentBytes,
    installation,
    shards,
    clock,
    log,
    metrics,
    onStored,
    ...config.ingest.ship,
  };
  const journals = new OrphanJournals(options);
  let stopped = false;
  for (const signal of ['SIGINT', 'SIGTERM'] as const) process.once(signal, () => (stopped = true));
  await journals.start();
  printLine(`${counted(journals.count, 'journal')} with ${sizeText(journals.bytes)} to ship to ClickHouse`);
  let loggedAt = clock.monotonic();
  while (journals.count > 0 && !stopped) {
    await systemScheduler.sleep(50);
    if (clock.monotonic() - loggedAt < progressMs) continue;
    loggedAt = clock.monotonic();
    printLine(`${counted(journals.count, 'journal')} with ${sizeText(journals.bytes)} to ship`);
  }
  await journals.drain(0);
  await follower?.stop();
  await Promise.all([shards.close(), repeatDeletes(postgres).finally(() => postgres.close())]);
  const left = (await Promise.all(dirs.map((dir) => listQuarantine(dir)))).flat().length;
  if (journals.count === 0) printLine(`everything is stored and the journals are removed`);
  else printLine(`stopped; ${counted(journals.count, 'journal')} still to ship`);
  if (left > 0) printLine(`${counted(left, 'entry', 'entries')} in quarantine: npm run quarantine -- list`);
  if (journals.count > 0 || left > 0) process.exitCode = 1;
}

async function isReported(postgres: Postgres, writer: number): Promise<boolean> {
  return (await readJournals(postgres)).some((journal) => journal.writer === writer && journal.isLive);
}

/** Any error refuses, because rows of another installation would be stored as points of other devices. */
async function knownInstallation(postgres: Postgres): Promise<string | undefined> {
  try {
    return await findInstallation(postgres);
  } catch (error) {
    throw new StartError(
      'No row is shipped, because PostgreSQL does not say whether the journals are of its installation ' +
        `(${messageOf(error)}): check DATABASE_URL with \`npm run doctor\`, and call this again.`,
    );
  }
}

/** Refuses journals of another installation at once: `OrphanJournals` opens a journal that fails again and again. */
async function requireOwnRows(dirs: string[], installation: string | undefined): Promise<void> {
  for (const dir of dirs) {
    const known = await readInstallation(dir);
    if (known === undefined || installation === undefined || known === installation) continue;
    throw new StartError(
      `${dir} is a journal of another installation: its device numbers name other devices in the database of DATABASE_URL.`,
    );
  }
}

/** Deletes may also cover rows of a journal that is not empty yet, or whose directory has no writer id. */
async function repeatDeletes(postgres: Postgres): Promise<void> {
  try {
    await reopenTombstones(postgres);
  } catch (error) {
    printLine(`Deletes that came after these rows are not carried out again: ${messageOf(error)}`);
    process.exitCode = 1;
  }
}

runCommand(run);
