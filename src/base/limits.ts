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

  /** Distinct keys a worker remembers as bytes (`telemetry/keys.ts`); at the cap the oldest generation goes. */
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

  /** Restarts of one child process within the window that mean a crash loop. */
  crashLoopCount: 5,
  crashLoopWindowMs: 30_000,
  restartDelayMs: 200,

  /** Rows that one REST history query may return, whatever `limit` says. */
  historyRowsMax: 1_000_000,
  historyIntervalsMax: 700,
  pageSizeMax: 10_000,
} as const;

export function checkLimits(config: Config): void {
  assert(limits.frameBytesMax * 4 <= config.ingest.journal.segmentBytes, 'a segment holds several frames');
  assert(
    config.ingest.journal.unsyncedBytesMax >= 2 * limits.frameBytesMax,
    'one frame may be written while the next one gathers',
  );
  assert(config.http.bodyBytesInFlightMax >= config.http.bodyBytesMax, 'one body of the largest size fits');
}
