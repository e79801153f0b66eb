/**
 * The connection to the servers of the stream, and the calls that the other files make. It connects in the background
 * and again after each loss. Two streams carry the two lanes of the journal, so that neither waits for the other:
 * `<name>-live` with the subjects `<name>.live.<bucket>`, and `<name>-late`. Each has one durable consumer, which gives
 * a frame to one process of all hosts, and again to another one when it is not confirmed in time.
 */
import { readFileSync } from 'node:fs';
import { setTimeout as sleep } from 'node:timers/promises';
import {
  AckPolicy,
  type Consumer,
  type ConsumerConfig,
  DeliverPolicy,
  JetStreamApiError,
  type JetStreamClient,
  type JetStreamManager,
  jetstreamManager,
  type OrderedConsumerOptions,
  type PubAck,
  type StreamInfo,
} from '@nats-io/jetstream';
import {
  AuthorizationError,
  connect,
  credsAuthenticator,
  type NatsConnection,
  type NodeConnectionOptions,
  UserAuthenticationExpiredError,
} from '@nats-io/transport-node';
import { messageOf, StartError } from '../base/errors.ts';
import type { Log } from '../base/log.ts';
import type { Config } from '../base/settings/config.ts';
import { listOfSetting } from '../base/settings/list-setting.ts';
import { sizeText } from '../base/size-text.ts';
import { type Lane, laneNames, late, live } from '../journal/journal.ts';
import { destroyAbandonedSockets } from './abandoned-sockets.ts';
import { streamFormat } from './stream-frame.ts';

destroyAbandonedSockets();

export type StreamSettings = Config['stream'];

export const consumerName = 'millrace';
/** Of the frames that are given as JSON as well (`json-relay.ts`). */
export const jsonConsumerName = 'millrace-json';

/** A server that does not answer for about three of these intervals is left for another one. */
const pingIntervalMs = 1_000;
const pingsMax = 2;
const connectMsMax = 2_000;
const reconnectMs = 250;
/** The limit of one call of the management. */
const callMsMax = 3_000;
/** A connection that is lost for so long is tried again apart, to learn why it does not return. */
const lostMsMax = 4_000;
/** After so many times of `lostMsMax` the settings of the streams are checked again: about half a minute. */
const roundsOfCheck = 8;
/** A stop waits so long for servers that do not answer. */
const flushMsMax = 1_000;
/** A server without an answer for so long is left for another one: the others may have a majority without it. */
const unansweredMsMax = 4_000;
/** The servers' code for a server that knows no leader of the servers. */
export const leaderlessCode = 10_008;
/** Those for a stream, and a consumer, that is not there. */
export const streamNotFound = 10_059;
export const consumerNotFound = 10_014;

/** The least `max_payload`: the default of the servers. */
export const payloadBytesMin = 1024 * 1024;

/** The state of one lane's stream, as its servers report it. */
export interface LaneState {
  /** The time at which the stream was made: a stream with another time is another stream. */
  created: string;
  /** Number that the first message of the stream had. */
  begin: number;
  /** Number of the first message that is there; the number after the last one when there is none. */
  first: number;
  last: number;
  bytes: number;
  bytesMax: number;
  /** Time of the first message, in milliseconds; undefined when there is none. */
  firstAtMs: number | undefined;
  /** Messages after the first one that are not there any more. */
  lost: number[];
  /** Messages up to this one may be gone, because ClickHouse has them (`noteRemoved`). */
  removed: number;
  /** Servers that do not follow the leader of the stream; undefined: all of them do. */
  missing: MissingServers | undefined;
}

interface MissingServers {
  names: string[];
  /** Further servers that may be unavailable while the stream accepts frames. Below 0, it accepts none. */
  spare: number;
}

/** A member of the metadata of a stream, which its servers keep apart from the position in PostgreSQL. */
const removedMember = 'millrace_removed';

export interface ConsumerState {
  /** Every message up to this one is confirmed; 0 when the consumer may have skipped messages. */
  floor: number;
  /** Messages that are not confirmed. */
  waiting: number;
  redelivered: number;
}

export function streamName(settings: StreamSettings, lane: Lane): string {
  return `${settings.name}-${laneNames[lane]}`;
}

/** The stream of telemetry as JSON. */
export function jsonStreamName(settings: StreamSettings): string {
  return `${settings.name}-json`;
}

/** `bucket`: the bucket of a device, `*` for every bucket, or `probe`, which no device has. */
export function subjectOf(settings: StreamSettings, lane: Lane, bucket: number | '*' | 'probe'): string {
  return `${settings.name}.${laneNames[lane]}.${bucket}`;
}

/**
 * Connects to one of the servers. Throws why none accepts the connection. Each server is tried alone first, because the
 * client asks a cluster that refuses it again and again, at once and without an end: it adds each server that it has
 * given up when another one names it.
 */
async function connectTo(settings: StreamSettings, name: string): Promise<NatsConnection> {
  const options = streamConnection(settings, name);
  await tryServers(options);
  const giveUpAt = performance.now() + connectMsMax * (options.servers.length + 1);
  let isFirst = true;
  const connection = await connect({
    ...options,
    // The client asks for this delay before each try. An error ends its tries.
    reconnectDelayHandler: () => {
      if (isFirst && performance.now() > giveUpAt) throw new Error('no server accepts a connection');
      return reconnectMs + Math.random() * reconnectMs;
    },
  });
  isFirst = false;
  return connection;
}

/** Resolves when one of the servers accepts a connection. */
async function tryServers(options: StreamConnectionOptions): Promise<void> {
  const tries = options.servers.map(async (server) => {
    const connection = await connect({ ...options, servers: [server], ignoreClusterUpdates: true });
    void connection.close().catch(() => {});
  });
  try {
    await Promise.any(tries);
  } catch (error) {
    const { errors } = error as AggregateError;
    // A server that is stopped says less than one that refuses.
    throw errors.find(isLogin) ?? errors.find(isCertificate) ?? errors[0];
  }
}

type StreamConnectionOptions = NodeConnectionOptions & { servers: string[] };

function streamConnection(settings: StreamSettings, name: string): StreamConnectionOptions {
  const { url, user, password, creds, tlsCa } = settings;
  const servers = listOfSetting(url);
  const isTls = tlsCa !== '' || servers.some((server) => server.startsWith('tls://'));
  return {
    servers: servers.map((server) => server.replace(/^(nats|tls):\/\//, '')),
    name,
    timeout: connectMsMax,
    maxReconnectAttempts: -1,
    pingInterval: pingIntervalMs,
    maxPingOut: pingsMax,
    // A login may be repaired at the servers while Millrace runs.
    ignoreAuthErrorAbort: true,
    ...(user !== '' && { user, pass: password }),
    ...(creds !== '' && { authenticator: credsAuthenticator(credsOf(creds)) }),
    // The client reads the file at each connection.
    ...(isTls && { tls: tlsCa === '' ? {} : { caFile: readable(tlsCa, 'STREAM_TLS_CA') } }),
  };
}

/**
 * Returns the content of the file at each connection, because credentials expire and are replaced. While the file has
 * none, as in the middle of a write, the last ones count: the client would close its connection for good.
 */
function credsOf(path: string): () => Buffer {
  let last = fileOf(path, 'STREAM_CREDS');
  if (!hasCreds(last)) {
    throw new StartError(`STREAM_CREDS is ${path}, which has no credentials: name a file that "nsc" has made.`);
  }
  return () => {
    try {
      const read = readFileSync(path);
      if (hasCreds(read)) last = read;
    } catch {
      // The file may be there again at the next connection.
    }
    return last;
  };
}

function hasCreds(file: Buffer): boolean {
  return /-{3,}\s+\S+\s+-{3,}[\s\S]*-{3,}\s+\S+\s+-{3,}/.test(file.toString());
}

function readable(path: string, setting: string): string {
  fileOf(path, setting);
  return path;
}

function fileOf(path: string, setting: string): Buffer {
  try {
    return readFileSync(path);
  } catch (error) {
    throw new StartError(`${setting} is ${path}, which cannot be read: ${messageOf(error)}.`);
  }
}

/** Returns why a connection fails, in words that say what to change. */
export function connectReason(error: unknown): string {
  const reason = messageOf(error);
  if (isLogin(error)) {
    return `the login was refused (${reason}): check STREAM_USER, STREAM_PASSWORD and STREAM_CREDS`;
  }
  if (isCertificate(error)) {
    return `the certificate of the servers is not accepted (${reason}): renew it, or check STREAM_TLS_CA`;
  }
  if (isWithoutListener(error)) return noMajority;
  if (isWithoutServer(error)) return `no server was found there (${reason}): check STREAM_URL and the servers`;
  return reason;
}

export function isLogin(error: unknown): boolean {
  return error instanceof AuthorizationError || error instanceof UserAuthenticationExpiredError;
}

/** True when no server listens for the stream. A server turns JetStream off when its disk is full. */
function isWithoutListener(error: unknown): boolean {
  return error instanceof Error && error.name === 'JetStreamNotEnabled';
}

/** True when nothing listens at the address, or its name is unknown. */
function isWithoutServer(error: unknown): boolean {
  const { code, cause } = error as { code?: unknown; cause?: unknown };
  if (/ECONNREFUSED|ENOTFOUND|EAI_AGAIN|EHOSTUNREACH/.test(String(code))) return true;
  if (/^(connection refused|getaddrinfo )/.test(messageOf(error))) return true;
  return cause instanceof Error && isWithoutServer(cause);
}

function isCertificate(error: unknown): boolean {
  const { code, cause } = error as { code?: unknown; cause?: unknown };
  if (/CERT|SIGNATURE|ISSUER/.test(String(code))) return true;
  return cause instanceof Error && isCertificate(cause);
}

/** Resolves with undefined when the servers answer with the code `missing`. */
export async function found<T>(reading: Promise<T>, missing: number): Promise<T | undefined> {
  try {
    return await reading;
  } catch (error) {
    if (error instanceof JetStreamApiError && error.code === missing) return undefined;
    throw error;
  }
}

export const noMajority =
  'no majority of its servers answers: they are unavailable, or have JetStream off, as after a full disk, or the ' +
  'account of STREAM_USER or STREAM_CREDS has no JetStream';

/** An acknowledgement of another stream, which no worker ships: a removed stream leaves its subjects to any other. */
export class OtherStream extends Error {}

/** True for a consumer that confirms messages which it has not given, or gives them without their bytes. */
export function maySkip(config: Partial<ConsumerConfig>): boolean {
  const filters = [config.filter_subject ?? '', ...(config.filter_subjects ?? [])];
  return (
    config.ack_policy !== AckPolicy.Explicit ||
    config.deliver_policy !== DeliverPolicy.All ||
    (config.max_deliver ?? -1) > 0 ||
    filters.some((filter) => filter !== '') ||
    config.headers_only === true
  );
}

/** A leader exchanges messages with each server every second. */
const silentNanosMax = 5_000_000_000;

/**
 * Returns the servers of a stream that do not follow its leader, as the leader reports them. A server that
 * never followed this leader is not `current`, and neither is one that is behind for a moment.
 */
export function missingServers(cluster: StreamInfo['cluster']): MissingServers | undefined {
  const replicas = cluster?.replicas ?? [];
  const isMissing = ({ current, offline, active }: (typeof replicas)[number]) =>
    !current || offline === true || active > silentNanosMax;
  const names = replicas.filter(isMissing).map(({ name }) => name);
  if (names.length === 0) return undefined;
  const servers = replicas.length + 1;
  return { names, spare: Math.ceil(servers / 2) - 1 - names.length };
}

/** Says what the loss of these servers means. */
export function missingSentence(stream: string, { names, spare }: MissingServers): string {
  const then =
    spare < 0
      ? 'it has no majority and accepts no frames'
      : `it accepts frames until ${spare + 1} more of its servers fail`;
  return `unavailable servers of the stream ${stream}: ${names.join(', ')}; ${then}`;
}

/** Calls that need a majority of the servers. */
type MajorityCall = 'publish' | 'read' | 'prepare';

/** One connection with its management. */
export class StreamLink {
  readonly connection: NatsConnection;
  readonly manager: JetStreamManager;
  readonly #publisher: JetStreamClient;
  /**
   * False while the connection is lost. Nothing may be sent then: the client would keep it in memory, without a limit.
   */
  isConnected = true;
  /** Since when no call was answered, in monotonic milliseconds; undefined after an answer. */
  #silentSince: number | undefined;
  /** The forms of the streams of both lanes: how their frames are written (`stream-frame.ts`). */
  readonly formats: [number, number] = [streamFormat, streamFormat];
  /** Since when calls of each kind have failed, in monotonic milliseconds. An answer removes its kind. */
  readonly #unansweredSince = new Map<MajorityCall, number>();

  private constructor(connection: NatsConnection, manager: JetStreamManager) {
    this.connection = connection;
    this.manager = manager;
    this.#publisher = manager.jetstream();
    void this.#follow();
  }

  async #follow(): Promise<void> {
    for await (const { type } of this.connection.status()) {
      if (type === 'disconnect') {
        this.isConnected = false;
        this.#silentSince ??= performance.now();
      }
      if (type === 'reconnect') this.isConnected = true;
    }
  }

  static async open(settings: StreamSettings, name: string): Promise<StreamLink> {
    const connection = await connectTo(settings, name);
    const manager = await jetstreamManager(connection, { checkAPI: false, timeout: callMsMax });
    return new StreamLink(connection, manager);
  }

  get payloadBytesMax(): number {
    return this.connection.info?.max_payload ?? 0;
  }

  /** Why its server cannot take every frame: a setting of a server may change while this process runs. */
  get shortfall(): string | undefined {
    const bytesMax = this.payloadBytesMax;
    if (bytesMax === 0 || bytesMax >= payloadBytesMin) return undefined;
    return (
      `the NATS servers take ${sizeText(bytesMax)} in one message, and frames need ${sizeText(payloadBytesMin)}: ` +
      'raise max_payload of the servers'
    );
  }

  /** The time for which every call has failed. */
  get silentMs(): number {
    return this.#silentSince === undefined ? 0 : performance.now() - this.#silentSince;
  }

  /** Resolves with the number of the message when a majority has synced it in this stream. */
  async publish(stream: string, subject: string, bytes: Uint8Array, msMax: number): Promise<number> {
    if (!this.isConnected) throw new Error('not connected to any server');
    let answer: PubAck;
    try {
      answer = await this.#publisher.publish(subject, bytes, { timeout: msMax, retries: 0 });
    } catch (error) {
      this.failed('publish', error);
      throw error;
    }
    this.answered('publish');
    if (answer.stream === stream) return answer.seq;
    const other = answer.stream;
    throw new OtherStream(`the subjects of the stream ${stream} belong to the stream ${other}: remove ${other}`);
  }

  /**
   * Called when a call was answered. The answer to a message proves a majority. A server that is cut off may answer
   * readers for a while, with nothing to read.
   */
  answered(call: MajorityCall): void {
    // A request without a connection ends without an error, and without messages.
    if (this.isConnected) this.#silentSince = undefined;
    if (call === 'publish') this.#unansweredSince.clear();
    else this.#unansweredSince.delete(call);
  }

  /**
   * Called with the error of a call that needs a majority. A server that reaches no other one answers the pings of its
   * clients all the same, so the connection would stay there.
   */
  failed(call: MajorityCall, error: unknown): void {
    const isAnswer = error instanceof JetStreamApiError && error.code !== leaderlessCode;
    if (isAnswer || error instanceof StartError) {
      this.answered(call);
      return;
    }
    const now = performance.now();
    this.#silentSince ??= now;
    const since = this.#unansweredSince.get(call) ?? now;
    this.#unansweredSince.set(call, since);
    if (!this.isConnected || this.connection.isClosed() || now - since < unansweredMsMax) return;
    this.#unansweredSince.clear();
    void this.connection.reconnect();
  }

  consumer(stream: string, name = consumerName): Promise<Consumer> {
    return this.#publisher.consumers.get(stream, name);
  }

  /** A consumer that ends with its reader. */
  orderedConsumer(stream: string, options: Partial<OrderedConsumerOptions>): Promise<Consumer> {
    return this.#publisher.consumers.get(stream, options);
  }

  /** When the message was stored, in milliseconds; undefined when it is gone. */
  async timeOf(stream: string, seq: number): Promise<number | undefined> {
    return (await this.manager.streams.getMessage(stream, { seq }))?.time.getTime();
  }

  async laneState(stream: string): Promise<LaneState> {
    const { created, state, config, cluster } = await this.manager.streams.info(stream, { deleted_details: true });
    const { messages, first_seq, last_seq, bytes, first_ts, deleted = [] } = state;
    return {
      created: String(created),
      // The servers leave it out when it is 1.
      begin: Math.max(1, config.first_seq ?? 1),
      first: messages === 0 ? last_seq + 1 : first_seq,
      last: last_seq,
      bytes,
      bytesMax: config.max_bytes,
      firstAtMs: messages === 0 ? undefined : Date.parse(String(first_ts)),
      lost: deleted,
      removed: Number(config.metadata?.[removedMember] ?? 0),
      missing: missingServers(cluster),
    };
  }

  async consumerState(stream: string, name = consumerName): Promise<ConsumerState> {
    const info = await this.manager.consumers.info(stream, name);
    const waiting = info.num_pending + info.num_ack_pending;
    const floor = maySkip(info.config) ? 0 : info.ack_floor.stream_seq;
    return { floor, waiting, redelivered: info.num_redelivered };
  }

  /** Notes in the stream itself that messages up to this one are removed although the position does not say so. */
  async noteRemoved(stream: string, upTo: number): Promise<void> {
    const { config } = await this.manager.streams.info(stream);
    const metadata = { ...config.metadata, [removedMember]: String(upTo) };
    await this.manager.streams.update(stream, { metadata });
  }

  /** What the stream holds, and its limit: an operator may have raised that of the settings. */
  async room(stream: string): Promise<{ bytes: number; bytesMax: number }> {
    const { state, config } = await this.manager.streams.info(stream);
    return { bytes: state.bytes, bytesMax: config.max_bytes };
  }

  /** Removes the messages up to this one. */
  async purge(stream: string, upTo: number): Promise<void> {
    await this.manager.streams.purge(stream, { seq: upTo + 1 });
  }

  async close(): Promise<void> {
    // Confirmations that the client still holds are sent first; what is not confirmed is given to another process.
    const flushed = this.connection.flush().catch(() => {});
    await Promise.race([flushed, this.connection.closed(), sleep(flushMsMax, undefined, { ref: false })]);
    await this.connection.close();
  }
}

export class StreamClient {
  readonly #settings: StreamSettings;
  readonly #log: Log;
  readonly #name: string;
  /** Makes and checks the streams, over a new connection. */
  readonly #prepare: (link: StreamLink) => Promise<void>;
  /** Throws a StartError when the streams do not keep the promise any more. */
  readonly #check: (link: StreamLink) => Promise<void>;
  #link: StreamLink | undefined;
  #failure: string | undefined = 'not connected yet';
  /** Why a connection that was lost does not return. */
  #lost: string | undefined;
  #closed = false;
  #running: Promise<void> = Promise.resolve();
  #wake: () => void = () => {};
  /**
   * Why the stream of a lane, or its consumer, is missing and cannot be made (`stream-watch.ts`): no worker would ship
   * the frames.
   */
  readonly unmade: [string | undefined, string | undefined] = [undefined, undefined];

  constructor(
    settings: StreamSettings,
    log: Log,
    name: string,
    prepare: (link: StreamLink) => Promise<void>,
    check: (link: StreamLink) => Promise<void> = async () => {},
  ) {
    this.#settings = settings;
    this.#log = log;
    this.#name = name;
    this.#prepare = prepare;
    this.#check = check;
  }

  /** Connects until it succeeds. Resolves after the first try. */
  start(): Promise<void> {
    return new Promise((resolve) => {
      this.#running = this.#run(resolve);
    });
  }

  /** Undefined until the first connection. A connection that is lost returns by itself. */
  get link(): StreamLink | undefined {
    return this.#link;
  }

  /** Why a stream is not usable; undefined when both were found usable. */
  get failure(): string | undefined {
    return this.failureOf(live) ?? this.failureOf(late);
  }

  /** As `failure`, of the stream of one lane. */
  failureOf(lane: Lane): string | undefined {
    return this.unmade[lane] ?? this.#failure ?? this.#link?.shortfall;
  }

  /** Why the servers have not answered for as long as a message waits; undefined while they answer. */
  get silence(): string | undefined {
    const link = this.#link;
    if (link === undefined || link.silentMs < this.#settings.ackMsMax) return undefined;
    // While a server without a majority is left for another one, there is no connection for a moment, and no reason.
    if (link.isConnected || this.#lost === undefined) return noMajority;
    return `no server can be reached: ${this.#lost}`;
  }

  /** Checks again what an operator may have changed since the connection was made. */
  async checkAgain(): Promise<void> {
    const link = this.#link;
    if (link?.isConnected !== true) return;
    try {
      await this.#check(link);
      if (this.#failure !== undefined) this.#log.info('stream_ready', {});
      this.#failure = undefined;
    } catch (error) {
      // Messages and readers notice servers that do not answer.
      if (error instanceof StartError) this.#noteFailure(error.message);
    }
  }

  /** Makes and checks the streams again, because one is missing. */
  async prepareAgain(): Promise<void> {
    if (this.#link) await this.#prepare(this.#link);
  }

  async close(): Promise<void> {
    this.#closed = true;
    this.#wake();
    await this.#running;
    await this.#link?.close();
  }

  async #run(onTried: () => void): Promise<void> {
    let opened: StreamLink | undefined;
    while (!this.#closed) {
      try {
        opened ??= await StreamLink.open(this.#settings, this.#name);
        await this.#prepare(opened);
        opened.answered('prepare');
        this.#link = opened;
        if (this.#failure !== undefined) this.#log.info('stream_ready', {});
        this.#failure = undefined;
        onTried();
        void this.#supervise(opened);
        return;
      } catch (error) {
        opened?.failed('prepare', error);
        this.#noteFailure(connectReason(error));
        onTried();
      }
      await this.#pause(4 * reconnectMs);
    }
    await opened?.close();
  }

  #noteFailure(failure: string): void {
    if (failure !== this.#failure) this.#log.warn('stream_not_ready', { reason: failure });
    this.#failure = failure;
  }

  /** Explains losses of the connection, and checks the streams less often. */
  async #supervise(link: StreamLink): Promise<void> {
    for (let rounds = 1; !this.#closed; rounds += 1) {
      await this.#pause(lostMsMax);
      if (this.#closed) return;
      if (link.isConnected) this.#lost = undefined;
      else if (link.silentMs >= lostMsMax) await this.#explainLoss();
      if (rounds % roundsOfCheck === 0) await this.checkAgain();
    }
  }

  /** Tries another connection while the present one is lost: the client does not say why its own tries fail. */
  async #explainLoss(): Promise<void> {
    try {
      await tryServers(streamConnection(this.#settings, this.#name));
    } catch (error) {
      const lost = connectReason(error);
      if (lost !== this.#lost) this.#log.warn('stream_not_connected', { reason: lost });
      this.#lost = lost;
    }
  }

  /** `close` ends it. */
  async #pause(ms: number): Promise<void> {
    await new Promise<void>((resolve) => {
      const timer = setTimeout(resolve, ms);
      timer.unref();
      this.#wake = () => {
        clearTimeout(timer);
        resolve();
      };
    });
  }
}
