/**
 * Every cap that is not a setting, in one room. A number that an operator may want to change is in config/default.yaml;
 * what stands here is part of the design. `checkLimits` asserts how they relate and runs at start-up.
 */
import type { Config } from './config.ts';
import { assert } from './errors.ts';

export const limits = {
  /** Depth of nested JSON; deeper is 400 (20 kB of brackets would overflow the stack of a recursive writer). */
  jsonDepthMax: 64,
  /** Characters of a telemetry or attribute key. */
  keyCharsMax: 255,
  /** Digits of one number literal and its exponent; longer is 400. */
  numberCharsMax: 1024,
  /** Characters of an access token in the path. */
  tokenCharsMax: 255,

  /** A body above this is decoded in a thread, so that it does not block the loop. */
  decodeInLoopBytesMax: 256 * 1024,
  /** Such bodies waiting for the thread, each worker. */
  decodeQueueMax: 16,
  /** A body the thread has not decoded by then is 503; one that needs more heap (megabytes of nested JSON) is 413. */
  decodeTimeoutMs: 30_000,
  decodeHeapMegabytesMax: 512,

  /** Distinct keys a worker remembers as bytes (`telemetry/keys.ts`); a new one takes the place of an old one. */
  keyCacheMax: 100_000,
  /** Devices a worker remembers by token, and unknown tokens it remembers to be unknown. */
  tokenCacheMax: 1_000_000,
  unknownTokenCacheMax: 50_000,
  unknownTokenMs: 5_000,
  /** Tokens that wait for one coalesced SQL look-up. */
  tokenLookupQueueMax: 20_000,
  tokenLookupBatchMax: 1_000,
  tokenLookupTimeoutMs: 5_000,

  /** Rows and bytes at which a frame stops gathering. */
  frameRowsMax: 32_768,
  frameBytesMax: 1024 * 1024,
  /** Requests that may wait for one frame. */
  frameWaitersMax: 65_536,

  /** HTTP long answers, waits and sockets. */
  idleSocketMs: 10_000,
  /** Files kept for journal, stores and logs when the file limit is divided. */
  fileReserve: 256,

  /** Deaths in a row, each within this time after the start, that mean a crash loop. */
  crashLoopCount: 5,
  crashLoopAliveMs: 2_000,
  restartDelayMs: 200,

  /** Rows that one REST history query may return, whatever `limit` says. */
  historyRowsMax: 1_000_000,
  historyIntervalsMax: 700,
  pageSizeMax: 10_000,

  /** Changed credentials: how often the log is read, in what steps, and how long it keeps a row. */
  credentialPollMs: 1_000,
  credentialChangesRowsMax: 10_000,
  credentialChangesKeptMs: 24 * 3_600_000,
  /** Body of a sign-in, characters of a password. */
  signInBodyBytesMax: 16 * 1024,
  passwordCharsMax: 72,
  passwordCharsMin: 6,
  /** One read of telemetry in ClickHouse. */
  telemetryQueryMsMax: 10_000,
  /** Keys and ids that one REST request may name. */
  listedKeysMax: 10_000,

  /** Embedded PostgreSQL: a start may have to replay its log, a stop to write it out (then it is told again, harder). */
  postgresStartMsMax: 120_000,
  postgresStopMsMax: 10_000,
  /** Waiting for a connection and for one statement; callers that may wait for a connection, each process. */
  postgresConnectMsMax: 5_000,
  postgresStatementMsMax: 30_000,
  postgresWaitersMax: 5_000,
  /** One migration, with the wait for another host that migrates. */
  migrationMsMax: 600_000,

  /** The bus: what one connection or process channel may hold that the other side has not taken; past it, dropped. */
  busMessagesInFlightMax: 20_000,
  busBytesInFlightMax: 8 * 1024 * 1024,
  busTimeoutMs: 1_000,

  /** Deletes: how often tombstones are looked at, how long they outlive every journal, and how long a deleted device may
   * still be sending until each cache has heard. */
  erasePollMs: 1_000,
  tombstoneKeptMs: 7 * 24 * 3_600_000,
  deletedDeviceGraceMs: 2_000,

  /** What the primary and its workers tell each other, and how long a worker waits for the instance's metrics. */
  statusIntervalMs: 250,
  metricsWaitMsMax: 3_000,
} as const;

export function checkLimits(config: Config): void {
  assert(limits.frameBytesMax * 4 <= config.ingest.journal.segmentBytes, 'a segment holds several frames');
  assert(
    config.ingest.journal.unsyncedBytesMax >= 2 * limits.frameBytesMax,
    'one frame may be written while the next one gathers',
  );
  assert(config.http.bodyBytesInFlightMax >= config.http.bodyBytesMax, 'one body of the largest size fits');
}
