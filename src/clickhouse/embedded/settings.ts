/** Settings of the embedded server, and the engine's configuration made of them: memory, threads, quiet logs. */
import { chmodSync, existsSync, mkdirSync, readFileSync, writeFileSync } from 'node:fs';
import { availableParallelism } from 'node:os';
import { join } from 'node:path';

export interface EmbeddedServerSettings {
  dir: string;
  /** 0 = any free port. */
  port: number;
  user: string;
  password: string;
  memoryBytesMax: number;
  /** Free bytes below which the journal refuses telemetry. The engine leaves shares of these bytes free. */
  freeDiskBytesMin: number;
  /** The number of statements that may run at once. */
  sessions: number;
  nice: number;
  /** Interval of the checks whether the engine is calm (`calm-merges.ts`); 0 = there are no calm merges. */
  calmCheckMs: number;
  /** Milliseconds that running statements may take once the server stops. */
  drainMsMax: number;
  logLevel: 'trace' | 'debug' | 'info' | 'warn' | 'error';
}

/** The message of a parent that stops the server. */
export const stopMessage = 'stop';

/** The settings travel in the environment: an argument would show the password to every user of the machine. */
export const settingsVariable = 'MILLRACE_EMBEDDED_CLICKHOUSE';

export const serverLimits = {
  /** Bytes of the rows of one insert; also limits the rows that wait in shared memory. */
  rowsBytesMax: 256 * 1024 * 1024,
  /** Bytes of a statement in a body. */
  statementBytesMax: 16 * 1024 * 1024,
  /** Bytes of a result, which is held in memory until the client has received it. */
  resultBytesMax: 256 * 1024 * 1024,
  urlBytesMax: 1024 * 1024,
  waitersMax: 256,
  waitMsMax: 10_000,
  connectionsMax: 1_024,
  keepAliveMs: 30_000,
  /**
   * Share of `freeDiskBytesMin` below which inserts are refused. A journal that refuses telemetry can still be stored.
   */
  insertsFreeShare: 1 / 4,
  /**
   * Share below which the engine reserves no space at all. `DROP PARTITION` reserves 1 MiB, so retention works longer
   * than inserts.
   */
  reservedFreeShare: 1 / 16,
} as const;

/** Slots that only inserts may take. */
function insertReserve(sessions: number): number {
  return Math.max(1, Math.floor(sessions / 4));
}

/** Slots that queries may take. */
export function querySlots(sessions: number): number {
  return Math.max(1, sessions - insertReserve(sessions));
}

/** Writes the engine's configuration file and returns its command line. */
export function engineArguments({ dir, memoryBytesMax, freeDiskBytesMin, nice }: EmbeddedServerSettings): string[] {
  // Also restricts a directory of an earlier version: the files hold the data of all tenants, and the data directory is
  // open to other users.
  mkdirSync(dir, { recursive: true, mode: 0o700 });
  chmodSync(dir, 0o700);
  const file = join(dir, 'engine.xml');
  const text = configFile(memoryBytesMax, freeDiskBytesMin, nice);
  // On a full disk the file may not be written again, and the engine still serves reads.
  if (!existsSync(file) || readFileSync(file, 'utf8') !== text) writeFileSync(file, text);
  const threads = Math.max(1, Math.min(8, availableParallelism()));
  return [
    `--config-file=${file}`,
    `--max_threads=${threads}`,
    '--max_insert_threads=1',
    `--max_memory_usage=${Math.floor(memoryBytesMax * 0.7)}`,
    `--max_result_bytes=${serverLimits.resultBytesMax}`,
    '--result_overflow_mode=throw',
    // An insert is answered when its part is on disk, not when it is in a buffer.
    '--async_insert=0',
    '--log_queries=0',
    // `selec 1` is a syntax error as on a server, not an expression.
    '--implicit_select=0',
  ];
}

/** `calmCheckMs` of the engine of an installation. */
export const calmCheckMsUsual = 30_000;

const mergeThreads = 2;
/**
 * Merges and mutations that are begun at once; the threads go on with the shortest of them. With half as many places in
 * turn, large merges of telemetry kept those of the small tables waiting: right after a load of 100 million points a
 * day of a device took 21 and 32 ms (p50 and p99) and latest values 11.8 and 21.5, now 14 and 23, and 8.5 and 15.4.
 */
const mergePlaces = 8;
/**
 * The defaults of these settings are made for a large server, where more places are free than there are here. While
 * fewer are free, only smaller merges are begun.
 */
const freePlacesForLargeMerges = mergePlaces / 2;
const freePlacesForMutations = mergePlaces / 4;

/**
 * The engine's defaults take 95 % of the machine's memory and pools for a large server, and fill the disk. The engine
 * ignores a failed write (see write-check.ts), so inserts, merges and mutations are refused before the disk is full.
 * Statistics of columns are off: the reads of Millrace need no statistics, and without statistics a merge takes a
 * fourth less CPU (0.20 instead of 0.27 µs a row).
 */
function configFile(memoryBytesMax: number, freeDiskBytesMin: number, nice: number): string {
  const freeForInserts = Math.floor(freeDiskBytesMin * serverLimits.insertsFreeShare);
  const keptFree = Math.floor(freeDiskBytesMin * serverLimits.reservedFreeShare);
  const cache = Math.floor(memoryBytesMax / 16);
  return `<clickhouse>
  <logger><level>none</level></logger>
  <max_server_memory_usage>${memoryBytesMax}</max_server_memory_usage>
  <mark_cache_size>${cache}</mark_cache_size>
  <index_mark_cache_size>${Math.floor(cache / 4)}</index_mark_cache_size>
  <primary_index_cache_size>${cache}</primary_index_cache_size>
  <uncompressed_cache_size>0</uncompressed_cache_size>
  <index_uncompressed_cache_size>0</index_uncompressed_cache_size>
  <mmap_cache_size>64</mmap_cache_size>
  <compiled_expression_cache_size>8388608</compiled_expression_cache_size>
  <storage_configuration>
    <disks><default><keep_free_space_bytes>${keptFree}</keep_free_space_bytes></default></disks>
  </storage_configuration>
  <merge_tree>
    <auto_statistics_types></auto_statistics_types>
    ${element('number_of_free_entries_in_pool_to_lower_max_size_of_merge', freePlacesForLargeMerges)}
    ${element('number_of_free_entries_in_pool_to_execute_mutation', freePlacesForMutations)}
    <min_free_disk_bytes_to_perform_insert>${freeForInserts - keptFree}</min_free_disk_bytes_to_perform_insert>
  </merge_tree>
  <os_threads_nice_value_merge_mutate>${nice}</os_threads_nice_value_merge_mutate>
  <background_pool_size>${mergeThreads}</background_pool_size>
  <background_merges_mutations_concurrency_ratio>${mergePlaces / mergeThreads}</background_merges_mutations_concurrency_ratio>
  <background_merges_mutations_scheduling_policy>shortest_task_first</background_merges_mutations_scheduling_policy>
  <background_move_pool_size>1</background_move_pool_size>
  <background_fetches_pool_size>1</background_fetches_pool_size>
  <background_common_pool_size>2</background_common_pool_size>
  <background_schedule_pool_size>4</background_schedule_pool_size>
  <background_buffer_flush_schedule_pool_size>1</background_buffer_flush_schedule_pool_size>
  <background_message_broker_schedule_pool_size>1</background_message_broker_schedule_pool_size>
  <background_distributed_schedule_pool_size>1</background_distributed_schedule_pool_size>
</clickhouse>
`;
}

function element(name: string, value: number): string {
  return `<${name}>${value}</${name}>`;
}
