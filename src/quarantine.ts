/**
 * `npm run quarantine`: shows and replays what shipping had to set aside. `list` shows each entry with its reason,
 * `show NAME` its rows, `replay [NAME]` sends rows to ClickHouse again (once its cause is gone), except rows that were
 * deleted meanwhile, and removes what was stored, `remove NAME` gives up one entry. Works while Millrace runs: replayed
 * rows are idempotent.
 */
import { basename, dirname, join } from 'node:path';
import { systemClock as clock } from './base/clock.ts';
import { jsonLine, printLine, runCommand } from './base/command.ts';
import { counted } from './base/counted.ts';
import { messageOf, StartError } from './base/errors.ts';
import { createLog } from './base/log.ts';
import { type Config, loadConfig } from './base/settings/config.ts';
import type { ShardMap, Shards } from './clickhouse/shards.ts';
import { insertLatestOf, insertTelemetryOf } from './clickhouse/statements.ts';
import { withoutErased } from './erase/replay-filter.ts';
import { reopenNewer } from './erase/tombstone-store.ts';
import { openPostgresOf, openShardsOf } from './instance/stores/engines.ts';
import { ShardMapFollower } from './instance/stores/shard-map-follower.ts';
import { listQuarantine, type QuarantineEntry, readQuarantined, removeQuarantined } from './journal/quarantine.ts';
import type { Postgres } from './postgres/client.ts';
import { requireJournals } from './support/journal-table.ts';
import { blocksOf, readBlock } from './telemetry/read-block.ts';
import { blocksByShard } from './telemetry/shard-blocks.ts';

const usage = 'usage: npm run quarantine -- list | show NAME | replay [NAME] | remove NAME';

async function run([verb = 'list', ...words]: string[]): Promise<void> {
  // A second name would be ignored, and the command would report success.
  if (words.length > (verb === 'list' ? 0 : 1)) throw new StartError(usage);
  const [name] = words;
  const config = loadConfig();
  const entries = await allEntries(config);
  switch (verb) {
    case 'list':
      for (const line of described(entries)) printLine(line);
      printLine(`${counted(entries.length, 'entry', 'entries')} in quarantine`);
      return;
    case 'show':
      for (const line of await shown(named(entries, name))) printLine(line);
      return;
    case 'replay':
      return replay(config, name === undefined ? entries : [named(entries, name)]);
    case 'remove': {
      const entry = named(entries, name);
      await removeQuarantined([entry]);
      printLine(`removed ${entry.name}`);
      return;
    }
    default:
      throw new StartError(usage);
  }
}

async function allEntries(config: Config): Promise<QuarantineEntry[]> {
  return (await Promise.all(requireJournals(config).map((dir) => listQuarantine(dir)))).flat();
}

function named(entries: QuarantineEntry[], name: string | undefined): QuarantineEntry {
  if (name === undefined) throw new StartError(usage);
  const found = entries.filter((entry) => entry.name === name || nameWithJournal(entry) === name);
  const [entry] = found;
  if (!entry) throw new StartError(`There is no entry ${name} in quarantine; \`list\` shows what there is.`);
  if (found.length === 1) return entry;
  throw new StartError(`Several journals have an entry ${name}: name ${found.map(nameWithJournal).join(' or ')}.`);
}

/** Segments of several journals have the same names, and so have their damaged stretches. */
function nameWithJournal({ dir, name }: QuarantineEntry): string {
  return `${basename(dirname(dir))}/${name}`;
}

function described(entries: readonly QuarantineEntry[]): string[] {
  const counts = new Map<string, number>();
  for (const { name } of entries) counts.set(name, (counts.get(name) ?? 0) + 1);
  return entries.map((entry) => {
    const { kind, rows, bytes, at, reason } = entry;
    const name = counts.get(entry.name) === 1 ? entry.name : nameWithJournal(entry);
    return `${name}  ${kind}  ${counted(rows, 'row')}  ${bytes} bytes  ${at}  ${reason}`;
  });
}

/** Returns the rows of an entry; for damaged bytes their place, and what an operator can do. */
async function shown(entry: QuarantineEntry): Promise<string[]> {
  if (entry.kind === 'rows') {
    return readBlock(await readQuarantined(entry)).map(jsonLine);
  }
  const file = join(entry.dir, `${entry.name}.data`);
  if (entry.name.startsWith('lost-')) {
    return [
      `A whole segment of the journal (${entry.source ?? entry.name}): its header is damaged.`,
      `The checksums of its frames begin with a number of that header, so no row can be read. The file is ${file}.`,
    ];
  }
  if (entry.reason.startsWith('no block')) {
    return [
      `A frame whose bytes are no rows, although its checksums match: ${entry.bytes} bytes, ${entry.source ?? entry.name}.`,
      `Another program wrote it, or a fault of Millrace did. The bytes are in ${file}.`,
    ];
  }
  return [
    `Damaged bytes of the journal (segment and offsets: ${entry.source ?? 'unknown'}): ${entry.bytes} bytes, ${entry.reason}.`,
    `The checksums of these frames do not match, so no row can be read. The bytes are in ${file}.`,
  ];
}

/** Sends the entries. A damaged stretch (`gap`) has no rows to send: it stays for an operator. */
async function replay(config: Config, entries: QuarantineEntry[]): Promise<void> {
  const log = createLog('warn', 'quarantine');
  const shards = openShardsOf(config, log);
  const postgres = openPostgresOf(config, log);
  // Devices may move to another shard during the replay: the move waits for what is sent by an earlier map.
  const follower = shards.isDivided ? new ShardMapFollower({ postgres, shards, clock, log }) : undefined;
  try {
    await follower?.start();
    for (const { kind, name } of entries) {
      if (kind === 'gap')
        printLine(`${name} stays: these bytes are damaged and have no rows to send; \`show\` says where they are`);
    }
    const replaying = new Replay(shards, postgres, config.telemetry.latestFutureSecondsMax * 1000);
    await replaying.sendAll(entries.filter(({ kind }) => kind === 'rows'));
    const { deleted, stored, refused } = replaying;
    if (deleted > 0) printLine(`${deleted} rows had been deleted meanwhile and were dropped`);
    printLine(`${counted(stored, 'row')} stored, ${counted(refused, 'entry', 'entries')} refused again`);
    if (refused > 0) process.exitCode = 1;
  } finally {
    await follower?.stop();
    await Promise.all([shards.close(), postgres.close()]);
  }
}

/** Entries that are sent together. */
const replayedTogether = 500;

/** Sends the rows of entries to ClickHouse again, and removes the entries that were stored. */
class Replay {
  /** Rows that were deleted after they were set aside. */
  deleted = 0;
  /** Rows. */
  stored = 0;
  /** Entries. */
  refused = 0;
  readonly #shards: Shards;
  readonly #postgres: Postgres;
  readonly #statements: readonly string[];

  /** `aheadMsMax`: a row further ahead of its arrival becomes no latest value; 0 = every row may. */
  constructor(shards: Shards, postgres: Postgres, aheadMsMax: number) {
    this.#shards = shards;
    this.#postgres = postgres;
    const rows = { serverTimes: true, expires: true, ranged: false };
    this.#statements = [insertTelemetryOf(rows), insertLatestOf({ ...rows, aheadMsMax })];
  }

  /** Sends many entries at once. When ClickHouse refuses them, each of them is sent alone. */
  async sendAll(entries: QuarantineEntry[]): Promise<void> {
    for (let at = 0; at < entries.length; at += replayedTogether) {
      const together = entries.slice(at, at + replayedTogether);
      try {
        await this.#send(together);
      } catch (error) {
        if (together.length === 1) this.#refuse(together[0]!, error);
        else await this.#sendEach(together);
      }
    }
  }

  async #sendEach(entries: QuarantineEntry[]): Promise<void> {
    for (const entry of entries) await this.#send([entry]).catch((error: unknown) => this.#refuse(entry, error));
  }

  #refuse({ name }: QuarantineEntry, error: unknown): void {
    this.refused += 1;
    printLine(`${name} stays: ${messageOf(error).slice(0, 300)}`);
  }

  async #send(entries: QuarantineEntry[]): Promise<void> {
    const blocks = await Promise.all(entries.map((entry) => readQuarantined(entry)));
    const replayed = await withoutErased(this.#postgres, Buffer.concat(blocks));
    if (replayed.body.length > 0) {
      await this.#insert(replayed.body);
      await reopenNewer(this.#postgres, replayed);
    }
    await removeQuarantined(entries);
    this.deleted += replayed.dropped;
    this.stored += entries.reduce((rows, entry) => rows + entry.rows, 0) - replayed.dropped;
  }

  async #insert(body: Buffer): Promise<void> {
    const { map } = this.#shards;
    const end = this.#shards.begin(map);
    try {
      for (const [shard, bytes] of bodiesByShard(body, this.#shards, map).entries()) {
        if (bytes.length === 0) continue;
        for (const statement of this.#statements) await this.#shards.all[shard]!.insertBlocks(statement, bytes);
      }
    } finally {
      end();
    }
  }
}

/** Divides concatenated blocks by the map. */
function bodiesByShard(body: Buffer, { all, isDivided }: Shards, map: ShardMap | undefined): Buffer[] {
  if (!isDivided) return [body];
  if (map === undefined) throw new StartError('The map of shards is not made yet: start Millrace first.');
  const divided = blocksOf(body).map((block) => blocksByShard(block, all.length, map));
  return all.map((_, shard) => Buffer.concat(divided.flatMap((blocks) => blocks[shard] ?? [])));
}

runCommand(run);
