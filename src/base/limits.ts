/**
 * Every cap that is not a setting, in one room. A number that an operator may want to change is in config/default.yaml;
 * what stands here is part of the design. `checkLimits` asserts how they relate and runs at start-up.
 */
import type { Config } from './config.ts';
import { assert, StartError } from './errors.ts';

export const limits = {
  /** Messages of a worker that wait for ClickHouse when `ingest.ack` is `store`; one more is 503. */
  storeWaitersMax: 100_000,

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
  /** Wrong credentials of devices: addresses that a worker counts, how soon it publishes its counts, entries of one message,
   * how often ended windows are forgotten, and right credentials that it remembers with their address. */
  wrongCredentialsAddressesMax: 10_000,
  wrongCredentialsTellMs: 100,
  wrongCredentialsPerMessage: 1_000,
  wrongCredentialsSweepMs: 1_000,
  rightCredentialsMax: 100_000,
  /** Profiles that answer for certificates: those of one tenant that are tried for one certificate, issuers that a worker
   * has read, and profiles of earlier versions that are looked at in one statement. */
  chainProfilesPerTenantMax: 20,
  chainIssuersMax: 1_000,
  chainIssuersNamedAtOnce: 500,
  /** A provisioning connection ends this long after its CONNECT. It has no credentials, so its packets (a request with a
   * certificate fits), its messages that wait for an answer, and such connections of one address at a worker are few. */
  provisioningSessionMs: 60_000,
  mqttProvisioningPacketBytesMax: 24 * 1024,
  mqttProvisioningInflightMax: 10,
  mqttProvisioningPerAddressMax: 500,
  /** How often a worker logs that an address has its share of connections. */
  mqttAddressLogMs: 60_000,
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

  /** MQTT logins that wait for one coalesced SQL look-up, and for how long; those that are remembered for when Postgres is
   * away; profiles whose topics are. */
  loginQueueMax: 20_000,
  loginBatchMax: 1_000,
  loginLookupTimeoutMs: 5_000,
  knownLoginsMax: 50_000,
  profileTopicsMax: 10_000,
  /** Sessions: devices whose last change is remembered, for a login that began before it and takes this long at most, and
   * sessions that one query holds against the store. */
  sessionChangesMax: 50_000,
  loginMsMax: 10_000,
  sessionChecksBatchMax: 1_000,

  /** Devices and tenants whose rate-limit buckets a worker remembers, and how it tells the other workers what it took. */
  rateLimitDevicesMax: 200_000,
  rateLimitTenantsMax: 10_000,
  rateLimitPublishMs: 3,
  rateLimitOwnersPerMessage: 2_000,

  /** Activity of devices: how often it is written, and of a device that goes on sending at least; how long a write may
   * take; how many devices in one transaction; and how long the database must have answered (all workers have written by
   * then) before silence counts as inactivity. */
  activityWriteMs: 500,
  activitySteadyMsMax: 10_000,
  activityLateMs: 2_000,
  activityRowsMax: 2_000,
  activitySettleMs: 10_000,

  /** MQTT: the first packet, how long CONNECT may take to come, how long a TLS handshake may take, and how finely deadlines are
   * kept. */
  mqttFirstPacketBytesMax: 4096,
  mqttConnectMsMax: 10_000,
  mqttTlsHandshakeMsMax: 5_000,
  mqttSweepMs: 500,
  /** User properties of one packet, filters of one session, and levels of a filter that a device profile leaves open. */
  mqttUserPropertiesMax: 100,
  mqttFiltersMax: 100,
  mqttFilterLevelsMax: 128,
  /** How long a client is not read while the journal refuses (at most half its Keep Alive); then its messages are refused.
   * How often a client that waits may go on, and how long those that may go on are served before others have a turn. */
  mqttPausedMsMax: 5_000,
  mqttJournalLookMs: 20,
  mqttJournalSliceMs: 20,
  /** A slow reader: above the first it is not read any more, above the second it is closed, as it is when it takes nothing for
   * that long. */
  mqttUnreadBytesPause: 64 * 1024,
  mqttUnreadBytesMax: 1024 * 1024,
  mqttStallMsMax: 30_000,
  /** Messages to one client: unacknowledged ones on their way, those behind them and their bytes; past it, it is closed. */
  mqttPushesInflightMax: 1_000,
  mqttPushesWaitingMax: 50_000,
  mqttPushBytesWaitingMax: 8 * 1024 * 1024,
  /** Several packets to one client leave in one write of this size. */
  mqttWriteBytes: 64 * 1024,

  /** MQTT over WebSocket: one message (browsers send up to 512 kB in one), what is kept while the connection does not
   * read, and in blocks of which size, what may wait for a client that does not, and how long that may take before a close. */
  webSocketMessageBytesMax: 1024 * 1024,
  webSocketKeptBytesMax: 2 * 1024 * 1024,
  webSocketBlockBytes: 16 * 1024,
  webSocketWaitingBytesMax: 16 * 1024 * 1024,
  webSocketEndMsMax: 5_000,

  /** Rows and bytes at which a frame stops gathering. */
  frameRowsMax: 32_768,
  frameBytesMax: 1024 * 1024,
  /** A frame that waits for the disk takes no more messages above this. `insertLatest` numbers its rows with 19 bits, and
   * one more message of `decodeInLoopBytesMax` has fewer than 65 536 rows. */
  gatheredRowsMax: 2 ** 19 - 2 ** 16,
  /** Requests that may wait for one frame. */
  frameWaitersMax: 65_536,

  /** Characters of all long headers of a request. */
  headerCharsMax: 8 * 1024,
  /** HTTP long answers, waits and sockets. */
  idleSocketMs: 10_000,
  /** Files kept for journal, stores and logs when the file limit is divided. */
  fileReserve: 256,

  /** Deaths in a row, each within this time after the start, that mean a crash loop. */
  crashLoopCount: 5,
  crashLoopAliveMs: 2_000,
  /** Work that ended two workers by a bug within the first time is refused for the second one; how many kinds of such work
   * are remembered, and how many open requests a dying worker names. */
  deathsWithinMs: 600_000,
  deathsBlockMs: 600_000,
  deathsKept: 1_000,
  suspectsMax: 20,
  /** The delay before a restart: doubled for each quick death in a row, up to the maximum. */
  restartDelayMs: 200,
  restartDelayMsMax: 30_000,
  /** The stores: how often each is asked whether it answers, how long a start waits for stores before its workers begin
   * without them, and the longest pause between two tries to bring a schema up to date. */
  storeLookMs: 500,
  storesWaitMsMax: 10_000,
  storePrepareMsMax: 30_000,
  /** Known devices on disk: rows of one page of a scan, devices of one block of changes, how often profiles are compared,
   * how often the place in the log is written while nothing changes, growth that starts a new file (also when the file
   * doubles), and devices answered from the file that are remembered for a check in the store. */
  knownPageRows: 1_000,
  knownProfilesLookMs: 10_000,
  knownMarkMs: 600_000,
  knownGrowthBytes: 16 * 1024 * 1024,
  knownAnsweredMax: 50_000,
  /** While the store does not answer: how often a worker looks for a newer file, bytes read at once from it, and how long
   * its index is kept afterwards. */
  knownLookMs: 1_000,
  knownKeptMs: 60_000,
  knownReadBytes: 2 * 1024 * 1024,

  /** Rows that one REST history query may return, whatever `limit` says. */
  historyRowsMax: 1_000_000,
  /** Bytes that ClickHouse may give for a history, whose rows are not kept, and for latest values, whose rows are. */
  historyReadBytesMax: 128 * 1024 * 1024,
  latestAnswerBytesMax: 32 * 1024 * 1024,
  /** Bytes of one long answer of the REST API, of all that a worker holds until their readers have taken them, and the
   * shares of one tenant and one customer. */
  longAnswerBytesMax: 64 * 1024 * 1024,
  longAnswersBytesMax: 256 * 1024 * 1024,
  longAnswersTenantBytesMax: 128 * 1024 * 1024,
  longAnswersCustomerBytesMax: 64 * 1024 * 1024,
  /** Bytes of values that one read of attributes returns. */
  attributesReadBytesMax: 8 * 1024 * 1024,
  historyIntervalsMax: 700,
  pageSizeMax: 10_000,
  /** Documents of entities (`additionalInfo`, `deviceData`, `profileData`, descriptions): bytes of one, of the image of a
   * profile (as a `data:` URL it has room for 384 KiB of PNG), and of all in one page. */
  documentBytesMax: 64 * 1024,
  imageBytesMax: 512 * 1024,
  pageBytesMax: 16 * 1024 * 1024,
  /** Devices whose number in ClickHouse a worker remembers for its readers. */
  askedDevicesMax: 100_000,

  /** Changed credentials: how many go in a message, how often the log is read, in what steps, how many are known as told,
   * how long a row is kept. */
  changesPerMessageMax: 500,
  credentialPollMs: 1_000,
  credentialChangesRowsMax: 10_000,
  credentialChangesToldMax: 50_000,
  credentialChangesKeptMs: 24 * 3_600_000,
  /** Body of a REST request, which is read in one turn of the loop, and of one that makes many devices. */
  apiBodyBytesMax: 1024 * 1024,
  bulkBodyBytesMax: 4 * 1024 * 1024,
  /** Body of a sign-in, characters of a password. */
  signInBodyBytesMax: 16 * 1024,
  passwordCharsMax: 72,
  passwordCharsMin: 6,
  /** The thread of password checks against all others; how long a check waits before it is refused; how long a password
   * that was right is known again without one. */
  passwordThreadNice: 5,
  passwordWaitMsMax: 10_000,
  rememberedPasswordMs: 10 * 60_000,
  rememberedPasswordsMax: 10_000,
  /** Wrong passwords of one network for one account before further tries have to wait (of one network for all accounts, and
   * for one account from everywhere: ten times as many), how long they wait at most, how many accounts and networks are
   * remembered and for how long. */
  failedSignInsFree: 10,
  failedSignInWaitMsMax: 60_000,
  failedSignInsMax: 100_000,
  failedSignInsForgottenMs: 15 * 60_000,
  /** Networks that are remembered for one user, the latest ones, and how often the time of one is written. */
  signInNetworksMax: 100,
  signInNetworkMs: 24 * 3_600_000,
  /** Sessions of one user, or of the guests of one customer, whose renewal or sign-out is remembered until their tokens have
   * expired; one more ends all sessions of that user. */
  sessionsPerOwnerMax: 10_000,
  /** A refresh token that was used is taken once more within this time: two pages may renew at the same moment, and an
   * answer may be lost. */
  sessionRenewalGraceMs: 60_000,
  /** API keys of one user, and how many keys may have made one another in a row. */
  apiKeysPerUserMax: 1_000,
  apiKeyMakersMax: 8,
  /** API keys that a worker knows, how long it believes what the store said of one, and how often expired ones go. */
  apiKeyCacheMax: 50_000,
  apiKeyBelievedMs: 900,
  apiKeyPurgeMs: 24 * 3_600_000,
  /** How long a link to choose a new password is good. */
  passwordResetMsMax: 24 * 3_600_000,
  /** One read of telemetry in ClickHouse. */
  telemetryQueryMsMax: 10_000,
  /** Latest values that one read returns when it names no keys. */
  latestValuesMax: 10_000,
  /** Names of keys that one read returns. */
  keyNamesMax: 100_000,
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
  /** How often a process logs that it dropped a message which it could not read. */
  busUnreadLogMs: 1_000,

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
  /** Of these bytes those of one device; a message with the most keys and a body of the most bytes fits. */
  attributeBytesWaitingPerDeviceMax: 4 * 1024 * 1024,
  attributeBatchRowsMax: 4_000,
  attributeQueues: 2,
  /** Stored attributes of one scope of a device or another entity; devices and entities whose sum a worker remembers, and
   * how long an owner that has too much is refused before the sum is read again. */
  attributeBytesStoredMax: 16 * 1024 * 1024,
  attributeOwnersKnownMax: 200_000,
  attributesFullMs: 5_000,
  attributeRetryMsMax: 3_000,
  /** How long the last statement of a lane is remembered, and after how many of its own a lane clears up. */
  attributeTurnKeptMs: 24 * 3_600_000,
  attributeTurnsPerPrune: 10_000,
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
  /** A session whose updates could not be read: how long until they are asked for again. */
  updateRetryMs: 2_000,
  /** Held polls: how finely their deadlines are kept. */
  pollTickMs: 50,

  /** Commands: body of any /rpc path; waiting commands of one device, of a worker, and their bytes, in all and for each
   * device, customer and tenant (a command counts at least 512 bytes); the longest wait of a caller; after what time the owners of one device tell each other what waits, and how long the owner of a younger
   * command waits for the one of an older. */
  rpcBodyBytesMax: 65_536,
  rpcWaitingPerDeviceMax: 1_000,
  rpcWaitingMax: 50_000,
  rpcWaitingBytesMax: 64 * 1024 * 1024,
  rpcWaitingBytesPerDeviceMax: 1024 * 1024,
  rpcWaitingBytesPerCustomerMax: 4 * 1024 * 1024,
  rpcWaitingBytesPerTenantMax: 16 * 1024 * 1024,
  rpcWaitMsMax: 3_600_000,
  rpcAnnounceMs: 5,
  rpcElderWaitMs: 500,
  /** Pauses before a command that no listener took is offered again: each is twice the one before. */
  rpcRepeatMsMin: 1_000,
  rpcRepeatMsMax: 30_000,
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

  /** Gateways: devices a worker knows by name, names that wait for one look-up and go into one statement, how long a name
   * that was refused a device stays refused, messages that wait for their devices to be looked up, updates that one
   * gateway has not confirmed, how soon an update that the store could not give is asked for again, notices to one
   * child, and how many claims of one message are worked on at once. */
  childNamesMax: 200_000,
  childNamesQueueMax: 100_000,
  childNamesBatchMax: 1_000,
  /** A child with more additional info connects, but the name of its gateway is not written into that. */
  childInfoBytesMax: 8 * 1024,
  refusedChildrenMax: 20_000,
  refusedChildMs: 5_000,
  gatewayHeldBytesMax: 64 * 1024 * 1024,
  /** Of these messages those of one gateway and of one tenant. */
  gatewayHeldBytesPerGatewayMax: 8 * 1024 * 1024,
  gatewayHeldBytesPerTenantMax: 48 * 1024 * 1024,
  gatewayUpdatesInFlightMax: 500,
  gatewayRetryMs: 2_000,
  gatewayNoticeMs: 1_000,
  gatewayClaimsAtOnce: 16,
  /** Names of children that one refusal spells out, and characters of each. */
  refusedChildrenNamedMax: 5,
  refusedChildNameCharsMax: 60,
  /** How long a gateway that is away can still be told that a device of it was deleted or renamed, and how often. */
  gatewayNewsMs: 24 * 3_600_000,
  gatewayNewsRetries: 3,
  /** Relations that one REST call may return. */
  relationsMax: 100_000,
  /** Relations from one entity that users may make, and levels that a search by relations goes down. */
  relationsOfEntityMax: 20_000,
  relationLevelsMax: 16,

  /** Devices that one REST call may make, and how many of them in one transaction. */
  newDevicesPerRequest: 20_000,
  newDevicesPerTransaction: 1_000,
  /** Rows, columns and bytes of a file of devices that is imported, and rows of it that are worked on at once. */
  importRowsMax: 10_000,
  importColumnsMax: 200,
  importBodyBytesMax: 8 * 1024 * 1024,
  importedAtOnce: 4,

  /** Deletes: how often the fence is read and deletes that were carried out are looked at, how long a deleted device may
   * still be sending until each cache has dropped it, and how often old tombstones are removed. */
  erasePollMs: 1_000,
  eraseLookMs: 5_000,
  deletedDeviceGraceMs: 5_000,
  tombstonesExpireMs: 3_600_000,
  /** How often a host reports journals that do not change, and after how long without a report deletes go on without them. */
  journalReportMs: 10_000,
  journalStaleMs: 30_000,
  journalReportsMsMax: 500,
  journalLastReportMsMax: 1_000,
  /** Tombstones of one read; devices, or ranges of series and bytes of their keys, of one statement; days and rows of one insert of markers; time of a batch, of a
   * statement, of deletes in one round that are carried out again, of the lease, and before what failed is tried again; mutations of latest values that may wait. */
  eraseTombstonesMax: 2_000,
  eraseDevicesMax: 1_000,
  eraseRangesMax: 32,
  eraseListBytesMax: 16 * 1024,
  eraseDaysMax: 100,
  eraseRowsMax: 2_000_000,
  eraseBatchMsMax: 50_000,
  eraseStatementMsMax: 30_000,
  eraseAgainMsMax: 5_000,
  eraseLeaseMs: 60_000,
  eraseRetryMsMin: 2_000,
  eraseRetryMsMax: 300_000,
  latestMutationsMax: 20,
  /** Retention: when it begins after a start and how often it looks, its lease, days that one statement drops, and expired
   * rows outside the days (2020 to 2039) that are worth a delete. */
  retentionFirstMs: 60_000,
  retentionMs: 3_600_000,
  retentionLeaseMs: 600_000,
  retentionDaysMax: 100,
  retentionOtherRowsMin: 100_000,
  /** How long the delete of a series waits for what was accepted before it to be stored, and how long it takes in all;
   * requests of one worker that wait to be carried out. */
  seriesDeleteWaitMsMax: 3_000,
  seriesDeleteMsMax: 10_000,
  seriesDeletesWaitingMax: 1_000,

  /** Packages: what one worker keeps of their files, pieces wanted from the database at once, uploads at once, bytes around the file
   * in an upload, and answers that are being sent piece by piece. */
  otaPieceCacheBytesMax: 32 * 1024 * 1024,
  otaPieceLoadsMax: 4096,
  /** A file that goes into one MQTT message from memory, and bytes of such files that a worker has on their way. */
  otaMessageBytesMax: 512 * 1024,
  otaMessageBytesInFlightMax: 64 * 1024 * 1024,
  /** Of these bytes those for devices of one tenant. */
  otaMessageBytesInFlightPerTenantMax: 48 * 1024 * 1024,
  /** Larger files in one MQTT message, slice by slice: how many a worker sends at once, what of each may wait for its client
   * and for how long without a byte being read, and how long and how often a slice is asked of a store that is unavailable. */
  mqttFilesMax: 200,
  mqttFileUnreadBytesMax: 256 * 1024,
  mqttFileStallMsMax: 60_000,
  mqttFileStoreMsMax: 30_000,
  mqttFileRetryMs: 500,
  /** Downloads that a connection may have begun under ids of its own; an old one makes room for a new one. */
  otaDownloadsPerSessionMax: 16,
  otaUploadsMax: 3,
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

  /** Reports: body of a request and of a view; fields, filters and values of a view; characters of a label; columns that a pivot may
   * make; bytes of all bound values of a query; attributes that the saved views of all tenants and of one name, and how many of
   * them are forgotten at once when no view names them any more; devices of one customer;
   * answers that are still being taken by slow readers. */
  reportBodyBytesMax: 256 * 1024,
  viewBodyBytesMax: 1024 * 1024,
  viewFieldsMax: 64,
  viewFiltersMax: 32,
  viewValuesMax: 10_000,
  viewLabelCharsMax: 64,
  pivotColumnsMax: 1_000,
  reportParameterBytesMax: 800_000,
  reportKeysMax: 100_000,
  reportKeysPerTenantMax: 1_000,
  reportKeysPrunedMax: 1_000,
  reportOwnDevicesMax: 80_000,
  reportSliceBytes: 256 * 1024,
  reportUnsentBytesMax: 512 * 1024 * 1024,
  /** Files of pages: what a slow reader of a larger one holds. */
  assetSliceBytes: 64 * 1024,
  /** What ClickHouse may give for one report; memory of a thread; how long it may take on top of the time of its query; how long a report waits for attributes that
   * are named for the first time. */
  reportResultBytesMax: 128 * 1024 * 1024,
  reportHeapMegabytesMax: 1024,
  reportGraceMsMax: 10_000,
  reportAttributesMsMax: 5_000,
  /** Copying device data to ClickHouse: how often there is a look, rows of one step, when a new key is copied again. */
  outboxPollMs: 500,
  outboxRowsMax: 5_000,
  outboxPageRowsMax: 20_000,
  outboxSettleMs: 35_000,
  /** How often there is a look whether the copy is still there. */
  outboxLookMs: 10_000,

  /** How often a worker tells the primary how it is. */
  statusIntervalMs: 250,
  /** The port for operators: connections, and how long a request may take to come. */
  monitorConnectionsMax: 64,
  monitorTimeoutMs: 10_000,
} as const;

export function checkLimits(config: Config): void {
  assert(limits.otaMessageBytesMax < limits.mqttUnreadBytesMax, 'a client that is sent a whole file is no slow reader');
  assert(limits.webSocketKeptBytesMax <= 256 * limits.webSocketBlockBytes, 'the bytes of a pause lie in few blocks');
  assert(limits.frameBytesMax * 4 <= config.ingest.journal.segmentBytes, 'a segment holds several frames');
  assert(
    config.ingest.journal.unsyncedBytesMax >= 2 * limits.frameBytesMax,
    'one frame may be written while the next one gathers',
  );
  // A sender has room for one body of the largest size that any route takes (`uws/body.ts`).
  const packageBytesMax = config.http.apiBodyBytesMax + limits.otaFormBytesMax;
  const { bodyBytesInFlightMax, bodyBytesMax } = config.http;
  if (
    bodyBytesInFlightMax < Math.max(bodyBytesMax, packageBytesMax, limits.importBodyBytesMax, limits.bulkBodyBytesMax)
  ) {
    throw new StartError(
      'HTTP_BODY_BYTES_IN_FLIGHT_MAX must have room for one body of the largest size: HTTP_BODY_BYTES_MAX, ' +
        `HTTP_API_BODY_BYTES_MAX and ${limits.otaFormBytesMax} bytes, and ${limits.importBodyBytesMax} bytes.`,
    );
  }
}
