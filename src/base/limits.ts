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
  /** Characters of a certificate as credentials. */
  certificateCharsMax: 16 * 1024,

  /** Body of a claim or a provisioning request: a certificate and a few names. */
  fleetBodyBytesMax: 256 * 1024,
  /** Wrong claim keys for one device inside a window; past it, even the right one has to wait. */
  wrongClaimKeysMax: 10,
  wrongClaimWindowMs: 60_000,
  /** Remote addresses whose wrong provisioning keys a worker counts; an old one makes room for a new one. */
  guessingAddressesMax: 10_000,
  guessWindowMs: 60_000,
  /** Devices whose keys stand for those of their profile: the newest ones. */
  keySampleDevicesMax: 1_000,
  /** How long a user may take to choose the first password. */
  activationMsMax: 24 * 3_600_000,

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

  /** Devices and tenants whose rate-limit buckets a worker remembers, and how it tells the other workers what it took. */
  rateLimitDevicesMax: 200_000,
  rateLimitTenantsMax: 10_000,
  rateLimitTellMs: 3,
  rateLimitOwnersPerMessage: 2_000,

  /** Activity of devices: how often it is written, how many devices in one transaction, and how long the database must
   * have answered (all workers have written by then) before silence counts as inactivity. */
  activityWriteMs: 2_000,
  activityRowsMax: 2_000,
  activitySettleMs: 10_000,

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

  /** The way down: how long an offer waits for a worker that has a listener, how long a shard is heard after its last
   * listener has gone, and listeners in one message after the bus came back. */
  offerWaitMs: 200,
  shardLingerMs: 30_000,
  openedPerMessageMax: 1_000,

  /** Attributes: body of a device's post, keys of one message, rows and bytes that wait for a commit in a worker, rows
   * of one statement, how long a write is tried again while the database is away. */
  attributeBodyBytesMax: 1024 * 1024,
  attributeKeysPerMessageMax: 1_000,
  attributeRowsWaitingMax: 100_000,
  attributeBytesWaitingMax: 64 * 1024 * 1024,
  attributeBatchRowsMax: 4_000,
  attributeLanes: 2,
  attributeRetryMsMax: 3_000,
  attributeStatementMsMax: 5_000,
  /** Updates of shared attributes: a larger one is read from the store instead of sent over the bus, how often the store
   * is asked for what the bus may have lost, how many devices' settled state is remembered, requests in one statement
   * and waiting, and how late after an answer the next poll may come without that answer being told again. */
  updateMessageCharsMax: 64 * 1024,
  updatePollMs: 1_000,
  updateHeadsRowsMax: 10_000,
  settledDevicesMax: 200_000,
  updateBatchMax: 1_000,
  updateQueueMax: 50_000,
  updateConfirmMs: 10_000,
  updateSettleMs: 20,
  /** Held polls: how finely their deadlines are kept. */
  pollTickMs: 50,

  /** Commands: body of any /rpc path; waiting commands of one device, of a worker, and their bytes; the longest wait of a
   * caller; after what time the owners of one device tell each other what waits, and how long the owner of a younger
   * command waits for the one of an older. */
  rpcBodyBytesMax: 65_536,
  rpcWaitingPerDeviceMax: 1_000,
  rpcWaitingMax: 50_000,
  rpcWaitingBytesMax: 64 * 1024 * 1024,
  rpcWaitMsMax: 3_600_000,
  rpcAnnounceMs: 5,
  rpcElderWaitMs: 500,
  rpcNumbersQueueMax: 20_000,
  rpcNumbersBatchMax: 1_000,
  /** Commands that outlive a restart: open ones of one device, the lease of an owner, how often rows are looked at and how
   * many are claimed, and how long a session may take to confirm one. */
  rpcPersistentPerDeviceMax: 1_000,
  rpcLeaseMs: 5_000,
  rpcSweepMs: 1_000,
  rpcClaimMax: 1_000,
  rpcConfirmMs: 10_000,
  rpcPruneMs: 600_000,
  rpcPruneRowsMax: 10_000,
  /** Calls of devices that wait for an answer: of one device, of a worker. The file of answers. */
  clientCallsPerDeviceMax: 20,
  clientCallsMax: 20_000,
  rulesMax: 10_000,
  ruleTextCharsMax: 65_536,

  /** Deletes: how often tombstones are looked at, how long they outlive every journal, and how long a deleted device may
   * still be sending until each cache has heard. */
  erasePollMs: 1_000,
  tombstoneKeptMs: 7 * 24 * 3_600_000,
  deletedDeviceGraceMs: 2_000,

  /** Packages: what one worker keeps of their files, pieces wanted from the database at once, uploads at once, bytes around the file
   * in an upload, and answers that are being sent piece by piece. */
  otaPieceCacheBytesMax: 32 * 1024 * 1024,
  otaPieceLoadsMax: 4096,
  otaUploadsMax: 2,
  otaFormBytesMax: 64 * 1024,
  streamsMax: 256,
  /** How long a device's assignment is remembered while it takes chunks, and for how many devices. */
  otaAssignmentMs: 2_000,
  otaAssignmentsMax: 20_000,
  /** The rollout: how often work is looked for, devices told at once, devices of a profile that get in line at once. */
  otaRolloutPollMs: 1_000,
  otaRolloutBatchMax: 100,
  otaRolloutExpandMax: 500,
  /** A slow reader: how often the rest is offered again, and how long it may take nothing at all. */
  streamOfferMs: 3_000,
  streamStallMsMax: 60_000,

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
