/**
 * The points of a report over several shards. The first server has the properties of devices, so each shard gets a
 * table with the devices of the report that it has, and its points by device and date base go into a table of the first
 * server, which the query of the plan reads. Equal reports get equal answers, because the columns of points are merged
 * in the same way as on one server. A shard that is down stops every report that needs points. The tables are in
 * memory, so their bytes have a cap for each report, and places of queries (`pool.ts`) limit the reports with tables.
 */
import { badRequest } from '../base/errors.ts';
import { limits } from '../base/limits.ts';
import { sizeText } from '../base/size-text.ts';
import type { ClickHouse, Parameters, QueryOptions } from '../clickhouse/client.ts';
import { bucketCount } from '../clickhouse/shards.ts';
import type { Plan, SpreadPlan } from './plan.ts';
import {
  createDeviceTable,
  createPointTable,
  devicesOfBuckets,
  dropTable,
  insertPoints,
  insertReported,
  type SpreadTables,
} from './spread-statements.ts';

type StepSettings = NonNullable<QueryOptions['settings']>;
type Step = (options: { timeoutMs: number; settings: StepSettings }) => Promise<void>;

interface SpreadDeps {
  /** All shards in their order. */
  servers: readonly ClickHouse[];
  /** The shard of each bucket. */
  shardOf: Uint8Array;
  /** Runs a step on one shard, until the report is too late, and turns errors into those of a report. */
  step: (shard: number, run: Step) => Promise<void>;
  /** Bytes of both tables, of all shards together. */
  bytesMax?: number;
}

/** Fills the tables of the plan. The caller drops both tables, also after an error. */
export async function gatherPoints({ parameters, spread }: Plan, deps: SpreadDeps): Promise<void> {
  if (spread === undefined) return;
  const { servers, step, bytesMax = limits.reportGatheredBytesMax } = deps;
  let bytes = 0;
  const onBytes = (more: number) => {
    bytes += more;
    if (bytes > bytesMax) throw tooMuch(bytesMax);
  };
  const buckets = bucketsOf(deps.shardOf, servers.length);
  // The first server gets the table of devices in any case: the columns of points are known only where it exists.
  const shards = [...servers.keys()].filter((shard) => shard === 0 || buckets[shard]!.length > 0);
  await all(shards, (shard) => giveDevices(spread, shard, { ...parameters, buckets: buckets[shard]! }, deps, onBytes));
  const { tables, points } = spread;
  const first = servers[0]!;
  await step(0, ({ timeoutMs, settings: { readonly: _, ...settings } }) =>
    first.exec(createPointTable(tables, points), parameters, { timeoutMs, settings }),
  );
  await all(shards, (shard) =>
    step(shard, ({ timeoutMs, settings }) => {
      const statements = { select: `${points} FORMAT Native`, insert: insertPoints(tables) };
      const options = { timeoutMs, selectSettings: whole(settings), onBytes };
      return servers[shard]!.copyTo(first, statements, parameters, options);
    }),
  );
}

async function giveDevices(
  { tables, devices }: SpreadPlan,
  shard: number,
  parameters: Parameters,
  { servers, step }: SpreadDeps,
  onBytes: (bytes: number) => void,
): Promise<void> {
  const [first, server] = [servers[0]!, servers[shard]!];
  await step(shard, ({ timeoutMs }) => server.exec(createDeviceTable(tables), {}, { timeoutMs }));
  await step(shard, ({ timeoutMs, settings }) => {
    const statements = { select: devicesOfBuckets(devices), insert: insertReported(tables) };
    return first.copyTo(server, statements, parameters, { timeoutMs, selectSettings: whole(settings), onBytes });
  });
}

function tooMuch(bytesMax: number): Error {
  return badRequest(
    'report_too_large',
    `The report gathers more than ${sizeText(bytesMax)} of devices and points by device and date from the shards: ` +
      'choose a shorter range, larger date groups or fewer devices.',
  );
}

/** An answer that begins before its query has ended cannot report a later error: the insert would fail instead. */
function whole(settings: StepSettings): StepSettings {
  return { ...settings, wait_end_of_query: 1 };
}

/** Drops the tables on every server. A table that cannot be dropped now is dropped later (`left-tables.ts`). */
export async function dropTables(
  { devices, points }: SpreadTables,
  servers: readonly Pick<ClickHouse, 'exec'>[],
  timeoutMs: number,
): Promise<void> {
  const [first] = servers;
  await Promise.allSettled([
    first!.exec(dropTable(points), {}, { timeoutMs }),
    ...servers.map((server) => server.exec(dropTable(devices), {}, { timeoutMs })),
  ]);
}

function bucketsOf(shardOf: Uint8Array, shards: number): number[][] {
  const buckets = Array.from({ length: shards }, (): number[] => []);
  for (let bucket = 0; bucket < bucketCount; bucket += 1) buckets[shardOf[bucket]!]!.push(bucket);
  return buckets;
}

/** Waits for every shard before an error is thrown, because the tables are dropped next. */
async function all(shards: readonly number[], run: (shard: number) => Promise<void>): Promise<void> {
  const results = await Promise.allSettled(shards.map(run));
  for (const result of results) if (result.status === 'rejected') throw result.reason;
}
