/**
 * A thread of the report pool: query, pivot, labels and encoding of one report at a time. It returns the bytes of the
 * answer, moved and not copied, or a fault as data. A thread may be ended at any moment.
 */
import { type MessagePort, workerData } from 'node:worker_threads';
import { badRequest, Fault, type PlainFault, unavailable } from '../base/errors.ts';
import { limits } from '../base/limits.ts';
import { createLog } from '../base/log.ts';
import { lowerPriority } from '../base/priority.ts';
import { systemScheduler } from '../base/scheduler.ts';
import { sizeText } from '../base/size-text.ts';
import { type ClickHouse, ClickHouseError, openClickHouse, type QueryOptions } from '../clickhouse/client.ts';
import { serverCodes } from '../clickhouse/errors/server-codes.ts';
import { type EncodedReport, encodeTable, type ReportFormat } from './encode.ts';
import type { Expired } from './expired-store.ts';
import { type Plan, planReport } from './plan.ts';
import { dropTables, gatherPoints } from './spread-points.ts';
import { spreadTables } from './spread-statements.ts';
import { type ResultRow, tableOf } from './table.ts';
import type { ViewDefinition } from './view.ts';

export interface ThreadData {
  /** All shards in their order; one server without shards. */
  servers: { url: string; user: string; password: string; database: string }[];
  logLevel: 'trace' | 'debug' | 'info' | 'warn' | 'error';
  rowsMax: number;
  answerBytesMax: number;
  memoryBytesMax: number;
  timeoutMs: number;
  nice: number;
}

export interface ReportTask {
  queryId: string;
  /** Gets a message when ClickHouse has answered and has no table of the report: another report may query it. */
  queried: MessagePort;
  /** Time for the query. */
  timeoutMs: number;
  tenantId: string;
  ownDevices: number[] | null;
  definition: ViewDefinition;
  startTs: number;
  endTs: number;
  now: number;
  expired: Expired;
  /** The shard of each bucket; undefined with one server. */
  shardOf?: Uint8Array | undefined;
  format: ReportFormat;
}

/** `bug`: an unexpected error, for the log. */
export type ReportOutcome = EncodedReport | { fault: PlainFault } | { bug: string };

/** Piscina's symbols for a value that is moved to the receiver. Importing Piscina here would load the pool too. */
const [transferable, value] = [Symbol.for('Piscina.transferable'), Symbol.for('Piscina.valueOf')];

const data = workerData as ThreadData;
// Lowers the priority of this thread only: the event loop and ingest go first.
lowerPriority(data.nice);
let opened: ClickHouse[] | undefined;

export default async function report(task: ReportTask): Promise<ReportOutcome> {
  try {
    const { limit } = task.definition;
    const rowsMax = Math.min(limit ?? data.rowsMax, data.rowsMax);
    const tables = task.shardOf && spreadTables(task.queryId);
    const plan = planReport({ ...task, rowsMax, tables });
    const encoded = encodeTable(tableOf(plan, await query(plan, task)), task.format, rowsMax, data.answerBytesMax);
    return { ...encoded, [transferable]: [encoded.bytes.buffer], [value]: encoded } as EncodedReport;
  } catch (error) {
    if (!(error instanceof Fault))
      return { bug: error instanceof Error ? (error.stack ?? error.message) : String(error) };
    const { reason, message, retryAfterSeconds } = error;
    return { fault: { reason, message, retryAfterSeconds } };
  }
}

async function query(plan: Plan, task: ReportTask): Promise<ResultRow[]> {
  const deadline = performance.now() + task.timeoutMs;
  try {
    if (task.shardOf === undefined || plan.spread === undefined) return await rowsOf(plan, task, deadline);
    try {
      const { queryId, shardOf } = task;
      const run = (shard: number, step: StepOf<void>) => runStep(queryId, deadline, step, shard);
      await gatherPoints(plan, { servers: servers(), shardOf, step: run });
      return await rowsOf(plan, task, deadline);
    } finally {
      await dropTables(plan.spread.tables, servers(), limits.reportDropMsMax);
    }
  } finally {
    task.queried.postMessage('answered');
    task.queried.close();
  }
}

function servers(): ClickHouse[] {
  opened ??= data.servers.map((server) =>
    // The primary reports outages.
    openClickHouse({ ...server, log: createLog(data.logLevel, 'report'), isUp: () => false }),
  );
  return opened;
}

const retryMs = 100;
const timeCodes = new Set<number>([serverCodes.timeoutExceeded, serverCodes.tooSlow, serverCodes.socketTimeout]);
const sizeCodes = new Set<number>([
  // An array of too many missing points.
  serverCodes.argumentOutOfBound,
  serverCodes.tooManyRows,
  serverCodes.cannotAllocateMemory,
  serverCodes.memoryLimitExceeded,
  serverCodes.tooManyBytes,
]);

function rowsOf(
  { sql, parameters }: Plan,
  { queryId, tenantId }: Pick<ReportTask, 'queryId' | 'tenantId'>,
  deadline: number,
): Promise<ResultRow[]> {
  const reads = servers()[0]!.readsOf(tenantId);
  return runStep(queryId, deadline, (options) => reads.rows<ResultRow>(sql, parameters, options));
}

type StepOf<T> = (options: { timeoutMs: number; settings: NonNullable<QueryOptions['settings']> }) => Promise<T>;
let steps = 0;

/** Runs one statement; again while the server has too many. `shard`: whose server it is, of several. */
async function runStep<T>(queryId: string, deadline: number, step: StepOf<T>, shard?: number): Promise<T> {
  for (;;) {
    const timeoutMs = Math.max(1, Math.ceil(deadline - performance.now()));
    steps += 1;
    try {
      return await step({ timeoutMs, settings: settings(`${queryId}-${steps}`) });
    } catch (error) {
      if (!(error instanceof ClickHouseError)) throw error;
      if (performance.now() >= deadline || timeCodes.has(error.code)) throw tooLong();
      if (error.code === serverCodes.tooManySimultaneousQueries) await systemScheduler.sleep(retryMs);
      else throw asFault(error, shard);
    }
  }
}

function settings(queryId: string): NonNullable<QueryOptions['settings']> {
  return {
    // Parameters of the HTTP interface are passed with the settings.
    ...({ query_id: queryId } as object),
    // Allows reads only, for any statement; with 2 a server may still notice a disconnected client.
    readonly: '2',
    cancel_http_readonly_queries_on_client_close: 1,
    // The embedded engine runs this statement after ingest and reads; a server runs it after statements of a higher
    // priority.
    priority: '1',
    max_memory_usage: String(data.memoryBytesMax),
    max_result_bytes: String(limits.reportResultBytesMax),
    result_overflow_mode: 'throw',
    do_not_merge_across_partitions_select_final: 1,
    max_query_size: '4194304',
  };
}

function asFault(error: ClickHouseError, shard: number | undefined): Error {
  if (sizeCodes.has(error.code)) {
    const megabytes = Math.round(data.memoryBytesMax / 1024 ** 2);
    return badRequest(
      'report_too_large',
      `The report needs more than ${megabytes} MiB (REPORT_MEMORY_BYTES_MAX): choose a shorter range, larger groups or fewer devices.`,
    );
  }
  if (error.code === serverCodes.tooManyRowsOrBytes) {
    const most = sizeText(limits.reportResultBytesMax);
    const part = shard === undefined ? 'The answer' : `The part of shard ${shard}`;
    return badRequest(
      'report_too_large',
      `${part} from which the report is made has more than ${most}: choose a shorter range, larger groups or fewer devices.`,
    );
  }
  if (!error.transient) return error;
  const why = shard === undefined ? '' : `: shard ${shard} does not answer, and a report needs every shard`;
  const fault = unavailable('clickhouse_away', `Reports cannot be made at the moment${why}. Try again later.`, 5);
  fault.cause = error;
  return fault;
}

function tooLong(): Fault {
  const seconds = data.timeoutMs / 1000;
  return new Fault(
    'report_timeout',
    `The report took longer than ${seconds} s (REPORT_TIMEOUT_MS): choose a shorter range or fewer devices.`,
  );
}
