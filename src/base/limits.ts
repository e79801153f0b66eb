/**
 * Every cap that is not a setting. A number that an operator may want to change is in config/default.yaml; the numbers
 * here are part of the design. `limit-relations.ts` checks at each start how they relate.
 */

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

  /**
   * Body of a claim or a provisioning request: a certificate and a few names. Every client may send one, and the loop
   * reads this many bytes in a few milliseconds.
   */
  onboardingBodyBytesMax: 32 * 1024,
  /** Wrong claim keys for one device inside a window; after that even the right key has to wait. */
  wrongClaimKeysMax: 10,
  /** Length of the window of wrong claim keys. */
  wrongClaimWindowMs: 60_000,
  /** Names of other tenants (credentials, emails, keys) that a tenant may meet within `takenNamesMs`. */
  takenNamesMax: 20,
  /** Length of the window in which names of other tenants are counted. */
  takenNamesMs: 600_000,
  /** Calls of the REST API that a worker carries out at once, for each of its connections to PostgreSQL. */
  restCallsPerConnection: 4,
  /** Calls of the REST API that read an external ClickHouse at once, in a worker. The client has as many sockets. */
  telemetryReadsAtOnceMax: 32,
  /** Calls of the REST API that wait for their turn: fewer than statements may wait (`postgresWaitersMax`). */
  restCallsWaitingMax: 4_000,
  /** Callers of the REST API that one statement identifies. */
  callerReadsBatchMax: 1_000,
  /** Callers of the REST API that wait for the statement that identifies them. */
  callerReadsQueueMax: 20_000,
  /** Sign-ins, and passwords that are chosen by a link, that a worker looks up at once. */
  signInReadsAtOnceMax: 16,
  /** Look-ups for sign-ins that wait for their turn: fewer than statements may wait (`postgresWaitersMax`). */
  signInReadsWaitingMax: 4_000,
  /** Requests of devices for attributes that a worker reads at once. */
  attributeReadsAtOnceMax: 128,
  /** Bytes above which a read of attributes for a device is a large one. */
  attributeLargeReadBytesMin: 256 * 1024,
  /** Large reads of attributes that a worker carries out at once. */
  attributeLargeReadsAtOnceMax: 2,
  /** Requests of devices for attributes that wait for their turn. */
  attributeReadsWaitingMax: 20_000,
  /** Provisioning requests, certificates that are looked up, and offers for claiming that a worker works on at once. */
  onboardingAtOnceMax: 64,
  /** Work of `onboardingAtOnceMax` that waits for its turn: less than statements may wait (`postgresWaitersMax`). */
  onboardingWaitingMax: 4_000,
  /**
   * Networks whose wrong device credentials, or wrong provisioning keys, a worker counts; a new one evicts the oldest.
   */
  wrongTriesNetworksMax: 10_000,
  /** Time within which wrong tries are counted together, and for which a network is refused. */
  wrongTriesWindowMs: 60_000,
  /** Networks in one report of wrong tries, and credentials in one message about right ones. */
  wrongTriesPerMessage: 1_000,
  /** Interval at which ended windows of wrong tries are removed. */
  wrongTriesSweepMs: 1_000,
  /** Right credentials that a worker remembers with their address. */
  rightCredentialsMax: 100_000,
  /** Profiles of one tenant that are tried for one certificate. */
  chainProfilesPerTenantMax: 20,
  /** Issuers of certificates that a worker has read. */
  chainIssuersMax: 1_000,
  /** Profiles of earlier versions whose issuers are named in one statement. */
  chainIssuersNamedAtOnce: 500,
  /** Life of a provisioning connection after its CONNECT. */
  provisioningSessionMs: 60_000,
  /** Bytes of a packet on a provisioning connection: a request with a certificate fits. */
  mqttProvisioningPacketBytesMax: 24 * 1024,
  /** Messages of a provisioning connection that wait for an answer. */
  mqttProvisioningInflightMax: 10,
  /** Connections of one address at a worker that have no credentials and ask for some. */
  mqttProvisioningPerAddressMax: 500,
  /** Interval at which a worker logs that an address has its share of connections. */
  mqttAddressLogMs: 60_000,
  /** Devices, the newest ones, whose keys are listed as the keys of their profile. */
  keySampleDevicesMax: 1_000,
  /** Time in which a user may choose the first password. */
  activationMsMax: 24 * 3_600_000,

  /** A longer body is decoded in a thread, so that the decoding does not block the loop. */
  decodeInLoopBytesMax: 256 * 1024,
  /** Bodies of a worker that wait for the decoding thread. */
  decodeQueueMax: 16,
  /** Time in which the decoding thread decodes a body; after this time the answer is 503. */
  decodeTimeoutMs: 30_000,
  /** Heap of the decoding thread; a body that needs more (megabytes of nested JSON) is 413. */
  decodeHeapMegabytesMax: 512,

  /** Distinct keys that a worker remembers as bytes (`telemetry/keys.ts`); a new key evicts an old one. */
  keyCacheMax: 100_000,
  /** Devices that a worker remembers by token, about 100 bytes each (docs/durability.md#memory-of-known-devices). */
  tokenCacheMax: 16_000_000,
  /** Devices that sent lately: each is an object that a request finds at once. A power of two (`RecentDevices`). */
  recentDevicesMax: 65_536,
  /** Work of a load of devices before other work has a turn. */
  loadStepMs: 2,
  /** Records between two readings of the clock, in a load of devices. */
  loadRecordsAtOnce: 128,
  /** Longest rest between two turns of a load of devices. */
  loadRestMsMax: 20,
  /** Tokens that a worker remembers to be unknown. */
  unknownTokenCacheMax: 50_000,
  /** Time for which an unknown token is remembered. */
  unknownTokenMs: 5_000,
  /** Tokens that wait for a lookup in SQL. */
  tokenLookupQueueMax: 20_000,
  /** Tokens of one lookup in SQL. */
  tokenLookupBatchMax: 1_000,
  /** Time that a token waits for its lookup. */
  tokenLookupTimeoutMs: 5_000,

  /** MQTT logins that wait for a lookup in SQL. */
  loginQueueMax: 20_000,
  /** MQTT logins of one lookup in SQL. All their sessions begin in one turn of the loop: about 20 ms. */
  loginBatchMax: 200,
  /** Shortest time between the begins of two lookups, the first one for several logins: each then has more of them. */
  loginGatherMs: 20,
  /** Longest time for which a lookup waits because each turn of the loop brings another login. */
  loginGatherMsMax: 200,
  /** Time of one lookup. */
  loginLookupTimeoutMs: 5_000,
  /** Logins that a worker remembers for the time when PostgreSQL is unavailable. */
  knownLoginsMax: 50_000,
  /** Profiles whose topics a worker remembers. */
  profileTopicsMax: 10_000,
  /** Devices whose last change is remembered, for a login that began before the change. */
  sessionChangesMax: 50_000,
  /** Stamp of a session, in microseconds since 1970: up to the year 2112, and half of what a double holds exactly. */
  sessionStampMax: 2 ** 52,
  /** Longest time from the lookup of a login to its session: for this time a change of the device is remembered. */
  loginMsMax: 10_000,
  /** Sessions that one query compares with the store. */
  sessionChecksBatchMax: 1_000,

  /** Devices whose rate-limit buckets a worker remembers. */
  rateLimitDevicesMax: 200_000,
  /** Tenants, and customers, whose rate-limit buckets a worker remembers. */
  rateLimitTenantsMax: 10_000,
  /** Owners of rate limits that the home remembers in each kind: a new one evicts the oldest. */
  homeOwnersMax: 500_000,
  /** Devices and tenants in one report of what was taken from buckets. */
  rateLimitOwnersPerMessage: 2_000,
  /** Time after which the only user of a bucket reports that it still is. */
  bucketAloneMs: 60_000,
  /** Time after which the only user of a bucket reports again while half of the bucket or less is left. */
  bucketLowMs: 1_000,
  /** Time for which a worker that shares a bucket counts as one of its users after a report. */
  bucketSharedMs: 3_000,
  /** Characters of one rate limit of a tenant profile. */
  rateLimitCharsMax: 1_000,

  /** Interval at which a worker adds the usage of tenants to PostgreSQL. */
  tenantUsageMs: 5_000,
  /** Time until a worker reads the usage of a tenant with a quota that it does not know. */
  tenantUsageSoonMs: 200,

  /** Devices whose telemetry keys a worker remembers while a tenant has a limit of keys. */
  countedKeyDevicesMax: 200_000,
  /** Telemetry keys that a worker remembers, of all devices with a limit of keys. */
  countedKeysMax: 2_000_000,
  /** Keys of one message that are compared with the next message of the device first. */
  countedKeysUsualMax: 32,
  /** Keys of one device that a worker reads from ClickHouse. */
  countedKeysReadMax: 100_000,
  /** Devices whose keys a worker reads at once; others are read later. */
  countedKeyReadsMax: 4,
  /** New keys after which a worker reads what other workers have stored, as a part of the limit. */
  countedKeyReadPart: 0.1,
  /** Least time between two reads of the keys of one device. */
  countedKeyReadMs: 2_000,

  /** Interval at which devices that woke up are written. */
  activityWriteMs: 500,
  /** Longest time between two writes of the block of a device that keeps sending. */
  activitySteadyMsMax: 45_000,
  /** Turns without activity after which a worker forgets a block. */
  activityIdleTurnsMax: 120,
  /** Blocks in one statement of activity. */
  activityBlocksMax: 64,
  /** Devices in one transaction of activity. */
  activityRowsMax: 2_000,
  /** Devices that are judged together. By measurement, 65 536 devices occupied the event loop for 7 to 18 ms. */
  activityPageDevices: 16_384,
  /** Pages of `activityPageDevices` that a worker reads in one round after its start, to learn the active devices. */
  activityLoadPages: 16,
  /** Interval at which a check reads all devices again, also those that were inactive. */
  activityReadAllMs: 600_000,
  /** Longest time between the time of a message and the moment at which the message is noted. */
  activityLateMs: 2_000,
  /** Interval at which a worker reports up to which time its activity is stored. */
  activityReportMs: 4_000,
  /** Least time without a report after which a worker counts as dead; the time itself is the inactivity time. */
  activityDeadMsMin: 5_000,
  /** Longest time without a report after which a worker counts as dead. */
  activityDeadMsMax: 60_000,
  /** Batches of devices that became inactive, read in one statement. */
  activityEndedRowsMax: 20,
  /** Time in which PostgreSQL must tell its clock to a check. */
  activityClockMsMax: 5_000,
  /** Batches of devices that became inactive, kept for workers that read late. */
  activityEndedKeptMax: 4_096,

  /** Bytes of the first MQTT packet. */
  mqttFirstPacketBytesMax: 4096,
  /** Bytes of the topic of a packet above `mqtt.packetBytesMax`; a longer topic ends the connection. */
  mqttLargeTopicBytesMax: 1024,
  /** Bytes of a large packet that count as activity of its sender. */
  mqttProgressBytes: 16 * 1024,
  /** Time without `mqttProgressBytes` after which a large packet loses its room and is skipped. */
  mqttLargeStallMsMax: 60_000,
  /** Time between two lines of a worker about packets of one device that are too large. */
  mqttTooLargeLogMs: 60_000,
  /** Devices whose last line about a packet that is too large is remembered. */
  mqttTooLargeLoggedMax: 10_000,
  /**
   * Time from the connection to its CONNECT. When many clients connect at once, the kernel may drop the CONNECT of a
   * connection that it completes later. The client's TCP repeats the packet after pauses that double: 0.2 s at first,
   * then up to 25.6 s.
   */
  mqttConnectMsMax: 30_000,
  /** Accepted MQTT connections of a worker that are not read yet, while the kernel has further ones to accept. */
  mqttArrivalsMax: 4_096,
  /** Accepted MQTT connections that a worker begins to read in one turn of the event loop. */
  mqttArrivalsPerTurn: 8,
  /** The shortest silence of an MQTT client after which the kernel probes it. Each socket has another one. */
  mqttProbeMsMin: 60_000,
  /** The longest silence of an MQTT client after which the kernel probes it. */
  mqttProbeMsMax: 120_000,
  /** Time of a TLS handshake. */
  mqttTlsHandshakeMsMax: 5_000,
  /** Time from the connection of a trusted proxy to the end of its PROXY header. */
  proxyHeaderMsMax: 5_000,
  /** Bytes of a PROXY header of version 2 with its additional fields. */
  proxyHeaderBytesMax: 4_096,
  /** Precision of the deadlines of MQTT connections. */
  mqttSweepMs: 500,
  /** User properties of one packet. */
  mqttUserPropertiesMax: 100,
  /** Filters of one session. */
  mqttFiltersMax: 100,
  /** Levels of a filter that a device profile leaves open. */
  mqttFilterLevelsMax: 128,
  /**
   * Time for which a client is not read while the journal refuses (at most half its Keep Alive); then its messages are
   * refused. An MQTT 3 client whose late rows are refused stays connected for this time, too.
   */
  mqttPausedMsMax: 5_000,
  /** Interval at which clients that wait for the journal may continue. */
  mqttJournalCheckMs: 20,
  /** Time for which clients that wait for the journal are served before other work has a turn. */
  mqttJournalSliceMs: 20,
  /** Above this number of bytes that a client has not taken, the client is not read any more. */
  mqttUnreadBytesPause: 64 * 1024,
  /** Above this number of bytes that a client has not taken, its connection is closed. */
  mqttUnreadBytesMax: 1024 * 1024,
  /** Bytes that clients have not taken: all clients of a worker that are not read above `mqttUnreadBytesPause`. */
  mqttUnreadBytesOfAllMax: 256 * 1024 * 1024,
  /** Time after which the connection of a client that takes nothing is closed. */
  mqttStallMsMax: 30_000,
  /**
   * Messages with QoS 2 of an MQTT 3 client that wait for their PUBREL; one more closes the connection. Each one takes
   * about 35 bytes. An MQTT 5 client has its Receive Maximum.
   */
  mqttUnreleasedMax: 10_000,
  /** Unacknowledged messages to one client. */
  mqttPushesInflightMax: 1_000,
  /** Messages to one client that wait for an earlier acknowledgement; one more closes the connection. */
  mqttPushesWaitingMax: 50_000,
  /** Bytes of the messages to one client that wait; one more closes the connection. */
  mqttPushBytesWaitingMax: 8 * 1024 * 1024,
  /** Packets to one client that leave together are written in pieces of this size. */
  mqttWriteBytes: 64 * 1024,

  /** Bytes of one WebSocket message; browsers send up to 512 kB in one. */
  webSocketMessageBytesMax: 1024 * 1024,
  /**
   * Part of the usable memory, divided by the processors, that the WebSockets of a worker without a CONNECT may take,
   * each the largest message.
   */
  webSocketUnnamedShare: 0.125,
  /** WebSockets without a CONNECT that a worker takes on a machine with little memory, too. */
  webSocketUnnamedMin: 16,
  /** The time that a WebSocket has for its CONNECT, however many there are. */
  webSocketUnnamedMsMin: 2_000,
  /** Bytes of a WebSocket that are kept while its MQTT connection is not read. */
  webSocketKeptBytesMax: 2 * 1024 * 1024,
  /** Size of the blocks in which `webSocketKeptBytesMax` bytes are kept. */
  webSocketBlockBytes: 16 * 1024,
  /** Bytes that wait for a WebSocket client that does not read. */
  webSocketWaitingBytesMax: 16 * 1024 * 1024,
  /** Time in which the bytes that wait for a WebSocket client are sent, at the end of its connection. */
  webSocketEndMsMax: 5_000,

  /** Rows at which a frame stops gathering. */
  frameRowsMax: 32_768,
  /** Bytes of a receipt; as base64url they are a third more, which fits a header and a path. */
  receiptBytesMax: 1024,
  /** Questions about refused rows that a worker answers at once: each reads files of the quarantine. */
  refusedAnswersAtOnceMax: 4,
  /** Questions about refused rows that wait at a worker; one more gets no answer about the rows of this worker. */
  refusedAnswersWaitingMax: 200,
  /** Interval of the log line that the rows refused by ClickHouse cannot be read. */
  refusedUnreadableLogMs: 60_000,
  /** Points that a receipt names. */
  receiptPointsMax: 64,
  /** Receipts of one commit, each about 15 µs of work; further messages are acknowledged without one. */
  receiptsPerCommitMax: 1_000,
  /** Share of one sender in `receiptsPerCommitMax`. */
  receiptsPerSenderMax: 100,
  /** Interval at which the positions of journals are recorded (`ingest/journal-store.ts`). */
  storedOrdersMs: 60_000,
  /** Time for which a recorded position is kept. */
  storedOrdersKeptMs: 7 * 86_400_000,
  /** Bytes at which a frame stops gathering. */
  frameBytesMax: 1024 * 1024,
  /** Rows above which a frame that waits for the disk takes no more messages: a frame is inserted as a whole. */
  gatheredRowsMax: 2 ** 19 - 2 ** 16,
  /** Requests that may wait for one frame. */
  frameWaitersMax: 65_536,

  /** Compressed bodies up to this size, packed and unpacked, are unpacked in the loop; larger ones in a thread. */
  unpackedInLoopBytesMax: 64 * 1024,
  /** Bodies that a process unpacks in threads at once: the journal needs the same threads. */
  unpackedAtOnceMax: 2,
  /** Compressed bodies that wait to be unpacked beside the loop. */
  unpackedWaitingMax: 256,

  /** Bytes above which a body of a REST call that arrived in one piece takes room. */
  bodyPieceBytesMin: 16 * 1024,
  /** Characters of all long headers of a request. */
  headerCharsMax: 8 * 1024,
  /** Files kept for journal, stores and logs when the file limit is divided. */
  fileReserve: 256,
  /** Files that each door of a worker, HTTP and MQTT, finds however many connections the other door has. */
  doorFilesKept: 256,
  /** The lowest file limit of a start: a worker that loads its modules has some 250 files open at once. */
  filesMin: 512,

  /** Deaths in a row that mean a crash loop. */
  crashLoopCount: 5,
  /** Time after a start within which a death counts for a crash loop. */
  crashLoopAliveMs: 2_000,
  /** Work that ended two workers by a bug within this time is refused. */
  deathsWithinMs: 600_000,
  /** Time for which work that ended two workers is refused. */
  deathsBlockMs: 600_000,
  /** Kinds of work that ended a worker and are remembered. */
  deathsKept: 1_000,
  /** Open requests that a dying worker names. */
  suspectsMax: 20,
  /** Delay before a restart; each quick death in a row doubles it. */
  restartDelayMs: 200,
  /** Longest delay before a restart. */
  restartDelayMsMax: 30_000,
  /** Interval at which each store is asked whether it answers. */
  storeCheckMs: 500,
  /** Time that a start waits for the stores before its workers begin without them. */
  storesWaitMsMax: 10_000,
  /** Longest pause between two tries to bring a schema up to date. */
  storePrepareMsMax: 30_000,
  /** Rows of one page when known devices are scanned for their file. */
  knownPageRows: 1_000,
  /** Interval at which the file of known devices gets changes ahead of new devices, while more pages follow. */
  knownAheadMs: 500,
  /** Changes written ahead that the writer of known devices remembers. While it has as many, no others go ahead. */
  knownAheadMax: 100_000,
  /** Bytes of a new file of known devices between two syncs: the file in use is not updated during a sync. */
  knownUnsyncedBytesMax: 8 * 1024 * 1024,
  /** Pause after a new file of known devices could not be made, before all devices are read again. */
  knownRebuildPauseMs: 30_000,
  /** Interval at which the profiles of known devices are compared. */
  knownProfilesCheckMs: 10_000,
  /** Interval at which the position in the log of changes is written while nothing changes. */
  knownMarkMs: 600_000,
  /** Growth after which a new file of known devices is written; a file that doubles is replaced as well. */
  knownGrowthBytes: 16 * 1024 * 1024,
  /** Devices that were answered from the file of known devices and are checked in the store later. */
  knownAnsweredMax: 50_000,
  /** Ranges of 32 768 devices whose changes a worker remembers until the file of known devices has them. */
  knownChangedPagesMax: 2_048,
  /** Time for which a worker remembers that a device changed: mostly the file of known devices has the change then. */
  knownChangedMs: 5_000,
  /** Interval at which a worker checks for a newer file of known devices while the store does not answer. */
  knownCheckMs: 1_000,
  /** Time for which the index of the file of known devices is kept after the store answers again. */
  knownKeptMs: 60_000,
  /** Bytes of one read of the file of known devices. */
  knownReadBytes: 2 * 1024 * 1024,

  /** Rows that one REST history query may return, with any `limit`. */
  historyRowsMax: 1_000_000,
  /** Bytes that ClickHouse may return for a history, whose rows are not kept. */
  historyReadBytesMax: 128 * 1024 * 1024,
  /** Bytes that ClickHouse may return for latest values, whose rows are kept. */
  latestAnswerBytesMax: 32 * 1024 * 1024,
  /** Latest values that are kept for one answer of ClickHouse. A short one takes 370 bytes of the heap. */
  latestRowsMax: 200_000,
  /** Bytes of one long answer of the REST API. */
  longAnswerBytesMax: 64 * 1024 * 1024,
  /** Bytes of all long answers that a worker holds until their readers have taken them. */
  longAnswersBytesMax: 256 * 1024 * 1024,
  /** Share of one tenant in `longAnswersBytesMax`. */
  longAnswersTenantBytesMax: 128 * 1024 * 1024,
  /** Share of one customer in `longAnswersBytesMax`. */
  longAnswersCustomerBytesMax: 64 * 1024 * 1024,
  /** Bytes above which an answer to a read holds room until its reader has taken it. */
  unsentAnswerBytesMin: 64 * 1024,
  /** Bytes of the answers that hold room in a worker, without the answers that `longAnswersBytesMax` counts. */
  unsentAnswersBytesMax: 256 * 1024 * 1024,
  /** Bytes of values that one read of attributes returns. */
  attributesReadBytesMax: 8 * 1024 * 1024,
  /** Characters of attributes that are written as JSON in one turn of the loop. */
  attributeTurnChars: 256 * 1024,
  /** Keys of one question for gaps. */
  gapKeysMax: 100,
  /** Gaps of one key that are listed. */
  gapsListedMax: 100,
  /** Intervals of one aggregated history. */
  historyIntervalsMax: 700,
  /** Entities of one page of a list. */
  pageSizeMax: 10_000,
  /** Bytes of one document of an entity: `additionalInfo`, `deviceData`, `profileData`, a description. */
  documentBytesMax: 64 * 1024,
  /** Bytes of the image of a profile as a `data:` URL, which is 384 KiB of PNG. */
  imageBytesMax: 512 * 1024,
  /** Bytes of all documents in one page. */
  pageBytesMax: 16 * 1024 * 1024,
  /** Devices whose number in ClickHouse a worker remembers for its readers. */
  askedDevicesMax: 100_000,

  /** Changed credentials in one message of the bus. */
  changesPerMessageMax: 500,
  /** Interval at which the file of known devices, and a worker that loads devices, follow the changed credentials. */
  credentialPollMs: 1_000,
  /** Rows of one read of the log of changed credentials, and devices that are passed on in one turn of the loop. */
  credentialChangesRowsMax: 1_000,
  /** Rows of the log of changed credentials that one statement deletes. */
  credentialChangesPrunedMax: 10_000,
  /** Changes that a worker remembers as handled. */
  credentialChangesPassedOnMax: 50_000,
  /** Time for which a row of the log of changed credentials is kept. */
  credentialChangesKeptMs: 24 * 3_600_000,
  /** Time for which one turn of long work may hold the event loop. */
  loopTurnMs: 4,
  /** Declared size of the body of a refused request up to which the answer waits for the end of the body. */
  skippedBodyBytesMax: 8 * 1024 * 1024,
  /** Time for which the answer to a refused request waits for the end of the body. */
  skippedBodyWaitMs: 1_000,
  /** Time after the answer to a refused request for which the rest of the body is received and dropped. */
  skippedBodyMsMax: 30_000,
  /** Body of a REST request, which is read in one turn of the loop. */
  apiBodyBytesMax: 1024 * 1024,
  /** Bytes of a REST body above which its parts are counted before it is parsed. */
  apiBodyCountedBytesMin: 64 * 1024,
  /**
   * Commas, colons, strings and opening brackets of a REST body above `apiBodyCountedBytesMin`: they decide how long
   * the parser takes, about 20 ms with this many. A body of `apiBodyCountedBytesMin` never has as many.
   */
  apiBodyPartsMax: 48 * 1024,
  /** Bytes of the rows of a large body that are parsed in one turn of the loop, and of one row. */
  apiRowsBytesMax: 128 * 1024,
  /** Body of a REST request that makes many devices. */
  bulkBodyBytesMax: 4 * 1024 * 1024,
  /** Body of a sign-in. */
  signInBodyBytesMax: 16 * 1024,
  /** Characters of a password. */
  passwordCharsMax: 72,
  /** Fewest characters of a password. */
  passwordCharsMin: 6,
  /** Priority of the thread of password checks against all other threads. */
  passwordThreadNice: 5,
  /** Time that a password check waits before it is refused. */
  passwordWaitMsMax: 10_000,
  /** Time for which a right password is known again without a check. */
  rememberedPasswordMs: 10 * 60_000,
  /** Right passwords that a worker remembers. */
  rememberedPasswordsMax: 10_000,
  /**
   * Wrong passwords of one network for one account before further tries have to wait. One network for all accounts,
   * and one account from everywhere, have ten times as many.
   */
  failedSignInsFree: 10,
  /** Longest wait after wrong passwords. */
  failedSignInWaitMsMax: 60_000,
  /** Accounts and networks whose wrong passwords are remembered. */
  failedSignInsMax: 100_000,
  /** Time for which wrong passwords are remembered. */
  failedSignInsForgottenMs: 15 * 60_000,
  /** Networks that are remembered for one user, the latest ones. */
  signInNetworksMax: 100,
  /** Shortest time between two writes of the time at which a network was last used. */
  signInNetworkMs: 24 * 3_600_000,
  /**
   * Sessions of one user, or of the guests of one customer, whose renewal or sign-out is remembered until their tokens
   * expire. Above this number all sessions of the user end.
   */
  sessionsPerOwnerMax: 10_000,
  /**
   * Time in which a used refresh token is taken once more: two pages may renew at the same moment, and an answer may
   * be lost.
   */
  sessionRenewalGraceMs: 60_000,
  /** API keys of one user. */
  apiKeysPerUserMax: 1_000,
  /** Longest chain of API keys of which each made the next one. */
  apiKeyMakersMax: 8,
  /** API keys that a worker remembers. */
  apiKeyCacheMax: 50_000,
  /** Time for which a worker uses the answer of the store about a key. */
  apiKeyBelievedMs: 900,
  /** Interval at which expired keys are deleted. */
  apiKeyPurgeMs: 24 * 3_600_000,
  /** Time for which a link to choose a new password is valid. */
  passwordResetMsMax: 24 * 3_600_000,
  /** Time of one read of telemetry in ClickHouse. */
  telemetryQueryMsMax: 10_000,
  /** Latest values that one read returns when it names no keys. */
  latestValuesMax: 10_000,
  /** Devices whose latest values one query reads, for callers that ask at the same time. */
  latestReadDevicesMax: 64,
  /** Names of keys that one read returns. */
  keyNamesMax: 100_000,
  /** Keys and ids that one REST request may name. */
  listedKeysMax: 10_000,

  /** Time of a start of embedded PostgreSQL, which may have to replay its log. */
  postgresStartMsMax: 120_000,
  /** Time of a stop of embedded PostgreSQL, which may have to write its log; then a faster stop follows. */
  postgresStopMsMax: 10_000,
  /** Time between two searches for a writable server of PostgreSQL. */
  postgresServersMs: 500,
  /** Time in which a transaction whose commit got no answer is repeated, where a repetition is recognised. */
  lostCommitMsMax: 10_000,
  /** Interval at which each process asks the one in use of several servers of PostgreSQL for an answer. */
  postgresPingMs: 2_000,
  /** Time in which a server must say whether it is writable. */
  postgresServerAskMsMax: 2_000,
  /** Time that a caller waits for a connection. */
  postgresConnectMsMax: 5_000,
  /** Time of one statement. */
  postgresStatementMsMax: 30_000,
  /** Callers of a process that may wait for a connection. */
  postgresWaitersMax: 5_000,
  /** Time of one migration, with the wait for another host that migrates. */
  migrationMsMax: 600_000,

  /**
   * Messages that a connection or process channel holds while the other side has not taken them; further ones are
   * dropped.
   */
  busMessagesInFlightMax: 20_000,
  /** Bytes of the messages that `busMessagesInFlightMax` counts, or one larger message; further ones are dropped. */
  busBytesInFlightMax: 8 * 1024 * 1024,
  /** Characters, or bytes, of one message of the bus; a sender drops a larger one. */
  busSentCharsMax: 8 * 1024 * 1024,
  /** Time that a subscription waits for its confirmation. */
  busTimeoutMs: 1_000,
  /** Pause after a first report of a gap of the bus. Each further report doubles the pause. */
  busGapPauseMsMin: 500,
  /** Longest pause between two reports of gaps of the bus. After this time without a gap the pauses are short again. */
  busGapPauseMsMax: 20_000,
  /** Shortest time between two batches of subscriptions, or of announcements: under load each then has more of them. */
  busGatherMs: 5,
  /** Bytes of one message that a process reads: three for each character of `busSentCharsMax`. */
  busMessageBytesMax: 24 * 1024 * 1024,
  /** Characters of a name in a message, as of a process, a network or a tenant. */
  busNameCharsMax: 100,
  /** Interval at which a process logs that it dropped an unreadable or too large message. */
  busUnreadLogMs: 1_000,
  /** Mean time between two reports of a worker to the home, and between two announcements of the home. */
  homeMs: 250,
  /** Least mean time of reports for each worker of all hosts: at most 250 reports a second reach the home. */
  homeMsPerWorker: 4,
  /** Mean time between two reports of one of few workers, which is multiplied by the square of their number. */
  homeMsPerSquaredWorker: 4,
  /** Reports, or announcements of the home, that go at once after a quiet time. */
  homeMessagesAtOnce: 5,
  /** Time after which a report that is not confirmed counts as lost, and the home as silent. */
  homeSilentMs: 1_500,
  /** Interval at which a worker checks whether it is the home. */
  homeCheckMs: 250,
  /** Sums of one topic in one announcement. */
  homeSumsMax: 500,
  /** Time that a question to all workers waits for their answers. */
  gatherMsMax: 1_000,
  /** Other workers that a worker asks. */
  gatherWorkersMax: 10_000,

  /** Devices whose refusals a worker records, and devices whose connections a worker records: the cap of each. */
  diagnosedDevicesMax: 10_000,
  /** Different outcomes of a device in each record. */
  diagnosedOutcomesMax: 8,
  /** Outcomes of a device that a worker looks at in a second; further ones are counted. */
  diagnosedPerSecondMax: 4,
  /** Devices that get a record in a second. */
  diagnosedNewPerSecondMax: 500,
  /** Devices of one tenant that get a record in a second. */
  diagnosedNewPerTenantMax: 250,
  /** Characters of the sentence of an outcome. */
  diagnosedMessageCharsMax: 300,
  /** First bytes of a refused message. */
  diagnosedBytesMax: 200,
  /** Networks of unknown senders that a worker counts. */
  diagnosedNetworksMax: 10_000,
  /** Devices or networks that a worker names for a list. */
  refusalsListedMax: 1_000,

  /** Time that an offer waits for a worker that has a listener. */
  offerWaitMs: 200,
  /** Longest `offerWaitMs` of a device: the time doubles when the worker of its listener has answered too late. */
  offerWaitMsMax: 800,
  /** Channels that all devices share over process channels. */
  busShards: 64,
  /** Time for which a worker stays subscribed to a shard after its last interest there has ended. */
  shardLingerMs: 30_000,
  /** Time for which a worker stays subscribed to the channel of a device after its last interest there has ended. */
  deviceLingerMs: 2_000,
  /** Sessions or listeners that are announced in one turn of the loop. */
  announcedAtOnceMax: 1_000,
  /** Pause of announcements for which the bus has no room. */
  announceRetryMs: 5,
  /** Share of all sessions or listeners of a worker that it announces again in a second, after a gap of the bus. */
  repeatedPerSecondShare: 0.05,
  /** Sessions or listeners that a worker announces again in a second at least. */
  repeatedPerSecondMin: 200,
  /** Longest random pause before a worker begins to announce again. */
  repeatStartMsMax: 500,
  /** Interval of the announcements after a gap. */
  repeatTickMs: 50,
  /** Time that a session waits for its own announcement before it is announced again. */
  sessionEchoMs: 2_000,

  /** Body of an attribute post of a device. */
  attributeBodyBytesMax: 1024 * 1024,
  /** A longer message of attributes is decoded in a thread, so that the decoding does not block the loop. */
  attributesInLoopBytesMax: 64 * 1024,
  /** Messages of attributes of a worker that wait for their decoding thread; a gateway has one of them at a time. */
  attributeDecodeQueueMax: 1_024,
  /** Keys of one attribute message. */
  attributeKeysPerMessageMax: 1_000,
  /** Rows of attributes that wait for a commit of a worker. */
  attributeRowsWaitingMax: 100_000,
  /** Bytes of the rows of attributes that wait for a commit of a worker. */
  attributeBytesWaitingMax: 64 * 1024 * 1024,
  /**
   * Share of one device in `attributeBytesWaitingMax`. A message with the most keys and a body of the most bytes fits.
   */
  attributeBytesWaitingPerDeviceMax: 4 * 1024 * 1024,
  /** Share of one tenant in `attributeBytesWaitingMax`. */
  attributeBytesWaitingPerTenantMax: 48 * 1024 * 1024,
  /** Rows of one statement. Every device of a queue waits for the statement that runs: 10 ms with this many rows. */
  attributeBatchRowsMax: 1_000,
  /** Queues of a worker, each with one statement at a time; shared attributes have one more. */
  attributeQueues: 2,
  /** Bytes of stored attributes of one scope of a device or another entity. */
  attributeBytesStoredMax: 16 * 1024 * 1024,
  /** Devices and entities whose sum of stored bytes a worker remembers. */
  attributeOwnersKnownMax: 200_000,
  /** Time for which an owner with too many stored bytes is refused before the sum is read again. */
  attributesFullMs: 5_000,
  /** Time for which a write is tried again while the database is unavailable. */
  attributeRetryMsMax: 3_000,
  /** Time for which the last statement of a queue is remembered. */
  attributeTurnKeptMs: 24 * 3_600_000,
  /** Statements of a queue after which it removes the rows of old queues. */
  attributeTurnsPerPrune: 10_000,
  /** Time of one statement of attributes. */
  attributeStatementMsMax: 5_000,
  /** Characters of an update that goes over the bus; listeners read a larger one from the store. */
  updateMessageCharsMax: 64 * 1024,
  /** Rows of one question for updates that the bus may have lost. */
  updateHeadsRowsMax: 10_000,
  /** Time that the bus has to deliver an update before the store is read for it. */
  updateBusMs: 300,
  /** Devices whose settled state is remembered. */
  settledDevicesMax: 200_000,
  /** Requests for updates in one statement. */
  updateBatchMax: 1_000,
  /** Bytes of shared attributes that one statement reads for updates, without those of the last device. */
  updateReadBytesMax: 8 * 1024 * 1024,
  /** Requests for updates that wait. */
  updateQueueMax: 50_000,
  /** Time after an answer in which the next poll confirms the answer; a later poll gets the same answer again. */
  updateConfirmMs: 10_000,
  /** Pause before updates are read again: the answer of another worker may not be stored yet. */
  updateSettleMs: 20,
  /** Time after which a session asks again for updates that could not be read. */
  updateRetryMs: 2_000,
  /** Precision of the deadlines of held polls. */
  pollTickMs: 50,

  /** Body of a request to any /rpc path. */
  rpcBodyBytesMax: 65_536,
  /** Commands of one device at other owners that an owner remembers. */
  rpcElsewhereMax: 10_000,
  /** Waiting commands of one device. */
  rpcWaitingPerDeviceMax: 1_000,
  /** Waiting commands of a worker. */
  rpcWaitingMax: 50_000,
  /** Bytes of the waiting commands of a worker; a command counts at least 512 bytes. */
  rpcWaitingBytesMax: 64 * 1024 * 1024,
  /** Share of one device in `rpcWaitingBytesMax`. */
  rpcWaitingBytesPerDeviceMax: 1024 * 1024,
  /** Share of one customer in `rpcWaitingBytesMax`. */
  rpcWaitingBytesPerCustomerMax: 4 * 1024 * 1024,
  /** Share of one tenant in `rpcWaitingBytesMax`. */
  rpcWaitingBytesPerTenantMax: 16 * 1024 * 1024,
  /** Longest wait of the caller of a command. */
  rpcWaitMsMax: 3_600_000,
  /** Delay after which the owners of a device's commands announce to each other what waits. */
  rpcAnnounceMs: 5,
  /** Commands whose deadline has passed that end at once; more end after a pause. */
  rpcEndsAtOnce: 16,
  /** Pause between commands that end. */
  rpcEndsMs: 10,
  /**
   * Divisor of the number of commands that are to end: this part of them ends at once, and at least `rpcEndsAtOnce`.
   */
  rpcEndsRounds: 64,
  /** Time that the owner of a younger command waits for the owner of an older one. */
  rpcElderWaitMs: 500,
  /** Further time for a living owner to deliver its older command: the owner is asked meanwhile. */
  rpcElderMsMax: 4_000,
  /**
   * First pause before PostgreSQL is asked again whether an older persistent command still waits; each pause is twice
   * the previous one.
   */
  rpcElderReadMsMin: 10,
  /** Longest pause before PostgreSQL is asked again whether an older persistent command still waits. */
  rpcElderReadMsMax: 320,
  /** First pause before a command that no listener took is offered again; each pause is twice the previous one. */
  rpcRepeatMsMin: 1_000,
  /** Longest pause before a command is offered again; then the command waits for a new listener. */
  rpcRepeatMsMax: 30_000,
  /** Commands that wait for their number. */
  rpcNumbersQueueMax: 20_000,
  /** Numbers given by one statement. */
  rpcNumbersBatchMax: 1_000,
  /** Replies to commands that a worker stores at once. */
  rpcRepliesAtOnceMax: 32,
  /** Replies to commands that wait to be stored. */
  rpcRepliesWaitingMax: 4_000,
  /** Open persistent commands of one device. */
  rpcPersistentPerDeviceMax: 1_000,
  /** Lease of the owner of a persistent command. */
  rpcLeaseMs: 5_000,
  /**
   * Time without a renewal of its lease after which an owner is waited for no longer; a living one renews after a
   * quarter of the lease and one sweep at the latest.
   */
  rpcSilentOwnerMs: 3_000,
  /** Interval at which the rows of persistent commands are checked. */
  rpcSweepMs: 1_000,
  /** Rows that one check claims, and rows whose end one check writes again. */
  rpcClaimMax: 1_000,
  /** Time after an outage of PostgreSQL in which workers claim no commands: their owners check them first. */
  rpcOwnersFirstMs: 3_000,
  /** Time in which a session must confirm a persistent command. */
  rpcConfirmMs: 10_000,
  /** Time in which a worker that stops waits for confirmations of persistent commands. */
  rpcStopMsMax: 2_000,
  /** Interval at which old persistent commands are deleted. */
  rpcPruneMs: 600_000,
  /** Old persistent commands in one delete. */
  rpcPruneRowsMax: 10_000,
  /** Calls of one device that wait for an answer. */
  clientCallsPerDeviceMax: 20,
  /** Calls of a worker's devices that wait for an answer. */
  clientCallsMax: 20_000,
  /** Rules in the file of answers. */
  rulesMax: 10_000,
  /** Characters of one answer in the file of answers. */
  ruleTextCharsMax: 65_536,

  /** Ids of tenants, customers and profiles, and other texts, that rows of devices share. */
  sharedTextsMax: 20_000,
  /** Devices of gateways that a worker remembers by name. */
  childNamesMax: 200_000,
  /** Names that wait for a lookup. */
  childNamesQueueMax: 100_000,
  /** Names in one statement. */
  childNamesBatchMax: 1_000,
  /** A child with more additional info is connected, but its additional info does not get the name of the gateway. */
  childInfoBytesMax: 8 * 1024,
  /** Names without a device that a worker remembers as refused. */
  refusedChildrenMax: 20_000,
  /** Time for which a name without a device stays refused. */
  refusedChildMs: 5_000,
  /** Bytes of messages that wait until their devices are looked up. */
  gatewayHeldBytesMax: 64 * 1024 * 1024,
  /** Share of one gateway in `gatewayHeldBytesMax`. */
  gatewayHeldBytesPerGatewayMax: 8 * 1024 * 1024,
  /** Share of one tenant in `gatewayHeldBytesMax`. */
  gatewayHeldBytesPerTenantMax: 48 * 1024 * 1024,
  /** Updates that one gateway has not confirmed. */
  gatewayUpdatesInFlightMax: 500,
  /** Time after which an update that the store could not give is asked for again. */
  gatewayRetryMs: 2_000,
  /** Shortest time between two notices to a gateway that one child was refused. */
  gatewayNoticeMs: 1_000,
  /** Messages on `v1/gateway/errors` to one gateway between two sweeps (`mqttSweepMs`); further ones are not sent. */
  gatewayErrorsPerSweepMax: 10,
  /** Claims of one message that are worked on at once. */
  gatewayClaimsAtOnce: 16,
  /** Names of children that one refusal spells out. */
  refusedChildrenNamedMax: 5,
  /** Characters of each name of a child that a refusal spells out. */
  refusedChildNameCharsMax: 60,
  /** Time for which a disconnected gateway still gets the notice that a device of it was deleted or renamed. */
  gatewayCommandMs: 24 * 3_600_000,
  /** Times that the notice of a deleted or renamed device is delivered again. */
  gatewayCommandRetries: 3,
  /** Relations that one REST call may return. */
  relationsMax: 100_000,
  /** Relations from one entity that users may make. */
  relationsOfEntityMax: 20_000,
  /** Levels that a search by relations goes down. */
  relationLevelsMax: 16,
  /** Entities that one entity query evaluates or returns. */
  queriedEntitiesMax: 20_000,
  /** Values that one entity query reads: entities times keys. */
  queriedValuesMax: 200_000,
  /** Keys that one entity query names, and conditions that its filters have. */
  queriedKeysMax: 100,
  /** Characters of all texts to which the filters of an entity query compare values. */
  queriedTextCharsMax: 65_536,
  /** Characters of a value by which an entity query sorts; longer values that begin alike are equal. */
  queriedSortCharsMax: 256,

  /** Devices that one REST call may make. */
  newDevicesPerRequest: 20_000,
  /** Devices that are made in one transaction. */
  newDevicesPerTransaction: 1_000,
  /** Rows of a file of devices that is imported. */
  importRowsMax: 10_000,
  /** Columns of a file of devices that is imported. */
  importColumnsMax: 200,
  /** Body of a request that imports a file of devices. */
  importBodyBytesMax: 8 * 1024 * 1024,
  /** Characters of a file of devices that are read in one turn of the loop. */
  importTurnChars: 256 * 1024,
  /** Rows of a file of devices that are worked on at once. */
  importedAtOnce: 4,

  /** Interval at which a host reads how many parts the tables of ClickHouse have, and the longest time of this read. */
  partsPollMs: 5_000,
  /** The least milliseconds for each live host between two reads of one host: all hosts make one read a second. */
  partsPollMsPerHost: 1_000,
  /** The longest interval between two reads of the parts. */
  partsPollMsMax: 30_000,
  /** Time for which a number of parts counts after its read. */
  partsKnownMs: 75_000,
  /** Interval at which a process checks on which map of shards its work relies. */
  mapUsePollMs: 1_000,
  /** Interval at which a process reports a map of shards that does not change. */
  mapUseReportMs: 5_000,
  /** Interval at which the fence of deletes is read. */
  erasePollMs: 1_000,
  /** Interval at which deletes that were carried out are checked. */
  eraseCheckMs: 5_000,
  /** Time for which a deleted device may still send, until each cache has dropped it. */
  deletedDeviceGraceMs: 5_000,
  /** Interval at which old tombstones are removed. */
  tombstonesExpireMs: 3_600_000,
  /** Interval at which a host reports journals that do not change. */
  journalReportMs: 10_000,
  /** Time without a report after which deletes continue without the journals of a host. */
  journalStaleMs: 30_000,
  /** Time that the primary waits for the reports of its workers. */
  journalReportsMsMax: 500,
  /** Time that a stopping worker waits for its last report to be written. */
  journalLastReportMsMax: 1_000,
  /** Tombstones of one read. */
  eraseTombstonesMax: 2_000,
  /** Bytes that the keys of the tombstones of one read take in PostgreSQL: fewer tombstones are read with many keys. */
  eraseReadBytesMax: 256 * 1024,
  /** Devices of one statement. */
  eraseDevicesMax: 1_000,
  /** Ranges of series of one statement. */
  eraseRangesMax: 32,
  /** Bytes of the keys of one statement. */
  eraseListBytesMax: 16 * 1024,
  /** Days of one insert of delete markers. */
  eraseDaysMax: 100,
  /** Rows of one insert of delete markers. */
  eraseRowsMax: 2_000_000,
  /** Time of a batch of deletes. */
  eraseBatchMsMax: 50_000,
  /** Time of one statement of deletes. */
  eraseStatementMsMax: 30_000,
  /** Time in which a worker that stops waits for a statement that deletes. */
  eraseStopMsMax: 1_500,
  /** Time in one round for deletes that are carried out again. */
  eraseAgainMsMax: 5_000,
  /** Lease of the worker that carries out deletes. */
  eraseLeaseMs: 60_000,
  /** First pause before a delete that failed is tried again. */
  eraseRetryMsMin: 2_000,
  /** Longest pause before a delete that failed is tried again. */
  eraseRetryMsMax: 300_000,
  /** Mutations of latest values that may wait in ClickHouse. */
  latestMutationsMax: 20,
  /** Most days of `telemetryTtlDays` of a device profile. */
  telemetryTtlDaysMax: 36_500,
  /** A clock that is further after its last check was set, or Millrace was stopped: nothing expires meanwhile. */
  clockJumpMsMax: 172_800_000,
  /** Time that Millrace runs in all until a clock that has jumped is trusted. */
  clockJumpWaitMs: 86_400_000,
  /** A longer time between two checks of a clock in doubt does not count as time that Millrace ran. */
  clockCheckGapMsMax: 7_200_000,
  /** Time after a start at which retention begins. */
  retentionFirstMs: 60_000,
  /** Interval of retention. */
  retentionMs: 3_600_000,
  /** Lease of the worker that does the retention. */
  retentionLeaseMs: 600_000,
  /** Time of one statement of retention: the copy of a large day takes minutes. */
  retentionStatementMsMax: 540_000,
  /** Time of one round for days with expired points; the other days wait for the next day. */
  retentionExpiredMsMax: 1_800_000,
  /** ClickHouse servers over which telemetry is spread. */
  shardsMax: 64,
  /** Days that one statement drops. */
  retentionDaysMax: 100,
  /** Devices of profiles with days of their own that are copied to ClickHouse at once. */
  retentionDevicesAtOnce: 20_000,
  /** Time after the end of a day at which its parts are merged, so that few of them change while they are copied. */
  retentionDayClosedMs: 10_800_000,
  /** Fewest expired points of profiles and of times to live that are deleted each day; fewer once a week. */
  retentionExpiredRowsMin: 100_000,
  /** Fewest expired rows outside the days (2020 to 2039) that are worth a delete. */
  retentionOtherRowsMin: 100_000,
  /** Time that the delete of a series waits until everything accepted before it is stored. */
  seriesDeleteWaitMsMax: 3_000,
  /** Time of the delete of a series in all. */
  seriesDeleteMsMax: 10_000,
  /** Deletes of series of one worker whose callers wait until they are carried out. */
  seriesDeletesWaitingMax: 1_000,
  /** Batches of deletes of series that one worker carries out at once; a tenant is in one batch at a time. */
  seriesDeleteBatchesMax: 2,
  /** Deletes of series that one statement of PostgreSQL records, or marks as carried out. */
  seriesDeletesPerStatementMax: 100,
  /** Bytes of the deletes of series that one statement records. */
  seriesDeleteBytesPerStatementMax: 64 * 1024,

  /** Bytes of package files that one worker keeps. */
  otaPieceCacheBytesMax: 32 * 1024 * 1024,
  /** Pieces of files that a worker waits for from the database. */
  otaPieceLoadsMax: 4096,
  /** Bytes of a file that is sent as one MQTT message from memory. */
  otaMessageBytesMax: 512 * 1024,
  /** Bytes of all files that a worker is sending from memory, each as one MQTT message. */
  otaMessageBytesInFlightMax: 64 * 1024 * 1024,
  /** Share of one tenant in `otaMessageBytesInFlightMax`. */
  otaMessageBytesInFlightPerTenantMax: 48 * 1024 * 1024,
  /** Larger files that a worker sends at once, each in one MQTT message, slice by slice. */
  mqttFilesMax: 200,
  /** Bytes of one file, sent slice by slice, that wait for its client. */
  mqttFileUnreadBytesMax: 256 * 1024,
  /** Time after which a client that reads nothing of its file is disconnected. */
  mqttFileStallMsMax: 60_000,
  /** Time for which a worker retries reading a slice from an unavailable store. */
  mqttFileStoreMsMax: 30_000,
  /** Interval at which a worker retries reading a slice. */
  mqttFileRetryMs: 500,
  /** Downloads that a connection may have begun under ids of its own; a new download evicts the oldest. */
  otaDownloadsPerSessionMax: 16,
  /** Uploads of a worker at once. */
  otaUploadsMax: 3,
  /** Bytes around the file in an upload. */
  otaFormBytesMax: 64 * 1024,
  /** Answers of a process that are being sent in slices. */
  streamsMax: 256,
  /** Time for which the assignment of a device is remembered while it takes chunks. */
  otaAssignmentMs: 2_000,
  /** Look-ups of a device's package that a worker makes at once. */
  otaLookUpsAtOnceMax: 32,
  /** Look-ups of a device's package that wait for their turn. */
  otaLookUpsWaitingMax: 20_000,
  /** Devices whose assignment is remembered. */
  otaAssignmentsMax: 20_000,
  /** Devices that are notified at once. */
  otaRolloutBatchMax: 100,
  /** Devices whose notification failed, and which a worker leaves out for a while. */
  otaLeftOutMax: 1_000,
  /** Time for which a worker leaves out a device whose notification failed. */
  otaLeftOutMs: 5_000,
  /** Largest pace of a rollout: beyond it no host keeps up. */
  otaPerMinuteMax: 1_000_000,
  /** Devices of a profile that join the queue at once. */
  otaRolloutExpandMax: 500,
  /** Interval at which a slow reader is offered the rest of an answer. */
  streamOfferMs: 3_000,
  /** Time after which a reader that takes nothing is disconnected. */
  streamStallMsMax: 60_000,

  /** Body of a report request. */
  reportBodyBytesMax: 256 * 1024,
  /** Body of a saved view. */
  viewBodyBytesMax: 1024 * 1024,
  /** Fields of a view. */
  viewFieldsMax: 64,
  /** Filters of a view. */
  viewFiltersMax: 32,
  /** Values in the filters of a view. */
  viewValuesMax: 10_000,
  /** Characters of a label. */
  viewLabelCharsMax: 64,
  /** Columns that a pivot may make. */
  pivotColumnsMax: 1_000,
  /** Bytes of all bound values of a query. */
  reportParameterBytesMax: 800_000,
  /** Attributes that the saved views of all tenants name. */
  reportKeysMax: 100_000,
  /** Attributes that the saved views of one tenant name. */
  reportKeysPerTenantMax: 1_000,
  /** Attributes that are removed at once when no view names them any more. */
  reportKeysPrunedMax: 1_000,
  /** Devices of the customer of a report. */
  reportOwnDevicesMax: 80_000,
  /** Size of the slices in which a report is sent. */
  reportSliceBytes: 256 * 1024,
  /** Bytes of reports that slow readers have not taken. */
  reportUnsentBytesMax: 512 * 1024 * 1024,
  /** Bytes of the file of a page that a slow reader holds in memory. */
  assetSliceBytes: 64 * 1024,
  /** Bytes of answers in slices that a process sends in one turn of its event loop: a fraction of a millisecond. */
  sliceLoopBytesMax: 256 * 1024,
  /** Bytes after which the next owner of answers in slices has its turn. */
  sliceTurnBytes: 64 * 1024,
  /** Bytes that ClickHouse may return for one report. */
  reportResultBytesMax: 128 * 1024 * 1024,
  /** Bytes that a report over several shards gathers in the memory of ClickHouse. */
  reportGatheredBytesMax: 256 * 1024 * 1024,
  /** Heap of a report thread. */
  reportHeapMegabytesMax: 1024,
  /** Time of a report thread beyond the time of its query. */
  reportGraceMsMax: 10_000,
  /** Time to drop the tables of a report over several shards. */
  reportDropMsMax: 5_000,
  /** Age after which a table of a report is left over. A search for left tables runs at this interval. */
  reportTablesLeftMs: 3_600_000,
  /** Times that one report is made again because devices moved between shards meanwhile. */
  reportMovesMax: 3,
  /** Time between two refusals of one caller of reports. */
  reportRefusalMs: 50,
  /** Longest time for which a refusal of a report is held back. */
  reportRefusalHeldMsMax: 2_000,
  /** Refusals of reports that are held back. */
  reportRefusalsHeldMax: 1_000,
  /** Time that a report waits for attributes that are named for the first time. */
  reportAttributesMsMax: 5_000,
  /** Time until a report whose attributes were not copied asks for a place again. */
  reportPreparedAgainMs: 50,
  /** Interval at which the outbox of device data is checked. */
  outboxPollMs: 500,
  /** Rows of one step of the outbox. */
  outboxRowsMax: 5_000,
  /** Rows of one page when devices or attributes are copied as a whole. */
  outboxPageRowsMax: 20_000,
  /** Bytes of the values of attributes that one statement of the outbox reads, without the last value. */
  outboxPageBytesMax: 8 * 1024 * 1024,
  /** Age at which a newly named key is copied again, when no older transaction can still write it. */
  outboxSettleMs: 35_000,
  /** Interval at which the copy in ClickHouse is checked for existence. */
  outboxCheckMs: 10_000,
  /** Interval at which `lastActivityTime` is copied while a report names it. */
  outboxActivityMs: 20_000,

  /** Interval at which a worker reports its state to the primary. */
  statusIntervalMs: 250,
  /** Interval at which a host polls PostgreSQL for all its workers. */
  hostPollMs: 1_000,
  /** Interval of the heartbeats by which the hosts of an installation know each other. */
  hostHeartbeatMs: 2_000,
  /** Time without a heartbeat after which a host is silent: its settings bind no other host. */
  hostSilentMs: 10_000,
  /** Time without a heartbeat after which a host is forgotten. */
  hostKeptMs: 3_600_000,
  /** Connections to the port for operators. */
  monitorConnectionsMax: 64,
  /** Time in which a request to the port for operators must arrive. */
  monitorTimeoutMs: 10_000,
} as const;
