/**
 * The connection to the servers of the stream, and the calls that the other files make. It connects in the background
 * and again after each loss. Two streams carry the two lanes of the journal, so that neither waits for the other:
 * `<name>-live` with the subjects `<name>.live.<bucket>`, and `<name>-late`. Each has one durable consumer, which gives
 * a frame to one process of all hosts, and again to another one when it is not confirmed in time.
 */
import { readFileSync } from 'node:fs';
import {
  type Consumer,
  JetStreamApiError,
  type JetStreamClient,
  type JetStreamManager,
  jetstreamManager,
  type OrderedConsumerOptions,
} from '@nats-io/jetstream';
import { connect, credsAuthenticator, type NatsConnection, type NodeConnectionOptions } from '@nats-io/transport-node';
import { messageOf, StartError } from '../base/errors.ts';
import type { Log } from '../base/log.ts';
import type { Config } from '../base/settings/config.ts';
import { type Lane, laneNames } from '../journal/journal.ts';
import { streamFormat } from './stream-frame.ts';

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
/** A server without an answer for so long is left for another one: the others may have a majority without it. */
const unansweredMsMax = 4_000;
/** The servers' code for a server that knows no leader of the servers. */
const leaderlessCode = 10_008;

/** The state of one lane's stream, as its servers report it. */
export interface LaneState {
  /** The time at which the stream was made: a stream with another time is another stream. */
  created: string;
  /** Number of the first message that is there; the number after the last one when there is none. */
  first: number;
  last: number;
  bytes: number;
  /** Time of the first message, in milliseconds; undefined when there is none. */
  firstAtMs: number | undefined;
  /** Messages after the first one that are not there any more. */
  lost: number[];
  lostCount: number;
  /** Messages up to this one may be gone, because ClickHouse has them (`noteRemoved`). */
  removed: number;
}

/** A member of the metadata of a stream, which its servers keep apart from the position in PostgreSQL. */
const removedMember = 'millrace_removed';

export interface ConsumerState {
  /** Every message up to this one is confirmed. */
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

function streamConnection(settings: StreamSettings, name: string): NodeConnectionOptions {
  const { url, user, password, creds, tlsCa } = settings;
  const servers = url.split(',').map((each) => each.trim());
  const isTls = tlsCa !== '' || servers.some((server) => server.startsWith('tls://'));
  return {
    servers: servers.map((server) => server.replace(/^(nats|tls):\/\//, '')),
    name,
    timeout: connectMsMax,
    reconnectTimeWait: reconnectMs,
    reconnectJitter: reconnectMs,
    maxReconnectAttempts: -1,
    pingInterval: pingIntervalMs,
    maxPingOut: pingsMax,
    // A login may be repaired at the servers while Millrace runs.
    ignoreAuthErrorAbort: true,
    ...(user !== '' && { user, pass: password }),
    ...(creds !== '' && { authenticator: credsAuthenticator(fileOf(creds, 'STREAM_CREDS')) }),
    ...(isTls && { tls: tlsCa === '' ? {} : { ca: fileOf(tlsCa, 'STREAM_TLS_CA').toString() } }),
  };
}

function fileOf(path: string, setting: string): Buffer {
  try {
    return readFileSync(path);
  } catch (error) {
    throw new StartError(`${setting} is ${path}, which cannot be read: ${messageOf(error)}.`);
  }
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
      if (type === 'disconnect') this.isConnected = false;
      if (type === 'reconnect') this.isConnected = true;
    }
  }

  static async open(settings: StreamSettings, name: string): Promise<StreamLink> {
    const connection = await connect(streamConnection(settings, name));
    const manager = await jetstreamManager(connection, { checkAPI: false, timeout: callMsMax });
    return new StreamLink(connection, manager);
  }

  get payloadBytesMax(): number {
    return this.connection.info?.max_payload ?? 0;
  }

  /** Resolves with the number of the message when a majority has synced it. */
  async publish(subject: string, bytes: Uint8Array, msMax: number): Promise<number> {
    if (!this.isConnected) throw new Error('not connected to any server');
    try {
      const { seq } = await this.#publisher.publish(subject, bytes, { timeout: msMax, retries: 0 });
      this.answered('publish');
      return seq;
    } catch (error) {
      this.failed('publish', error);
      throw error;
    }
  }

  /**
   * Called when a call was answered. The answer to a message proves a majority. A server that is cut off may answer
   * readers for a while, with nothing to read.
   */
  answered(call: MajorityCall): void {
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
    const { created, state, config } = await this.manager.streams.info(stream, { deleted_details: true });
    const { messages, first_seq, last_seq, bytes, first_ts, deleted = [], num_deleted = 0 } = state;
    return {
      created: String(created),
      first: messages === 0 ? last_seq + 1 : first_seq,
      last: last_seq,
      bytes,
      firstAtMs: messages === 0 ? undefined : Date.parse(String(first_ts)),
      lost: deleted,
      lostCount: num_deleted,
      removed: Number(config.metadata?.[removedMember] ?? 0),
    };
  }

  async consumerState(stream: string, name = consumerName): Promise<ConsumerState> {
    const info = await this.manager.consumers.info(stream, name);
    const waiting = info.num_pending + info.num_ack_pending;
    return { floor: info.ack_floor.stream_seq, waiting, redelivered: info.num_redelivered };
  }

  /** Notes in the stream itself that messages up to this one are removed although the position does not say so. */
  async noteRemoved(stream: string, upTo: number): Promise<void> {
    const { config } = await this.manager.streams.info(stream);
    const metadata = { ...config.metadata, [removedMember]: String(upTo) };
    await this.manager.streams.update(stream, { metadata });
  }

  /** Removes the messages up to this one. */
  async purge(stream: string, upTo: number): Promise<void> {
    await this.manager.streams.purge(stream, { seq: upTo + 1 });
  }

  async close(): Promise<void> {
    try {
      // Confirmations that the client still holds are sent first.
      await Promise.race([this.connection.flush(), this.connection.closed()]);
    } finally {
      await this.connection.close();
    }
  }
}

export class StreamClient {
  readonly #settings: StreamSettings;
  readonly #log: Log;
  readonly #name: string;
  /** Makes and checks the streams, over a new connection. */
  readonly #prepare: (link: StreamLink) => Promise<void>;
  #link: StreamLink | undefined;
  #failure: string | undefined = 'not connected yet';
  #closed = false;
  #running: Promise<void> = Promise.resolve();
  #wake: () => void = () => {};

  constructor(settings: StreamSettings, log: Log, name: string, prepare: (link: StreamLink) => Promise<void>) {
    this.#settings = settings;
    this.#log = log;
    this.#name = name;
    this.#prepare = prepare;
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

  /** Why there is no usable stream yet; undefined when it was found usable. */
  get failure(): string | undefined {
    return this.#failure;
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
        return;
      } catch (error) {
        opened?.failed('prepare', error);
        const failure = messageOf(error);
        if (failure !== this.#failure) this.#log.warn('stream_not_ready', { reason: failure });
        this.#failure = failure;
        onTried();
      }
      await new Promise<void>((resolve) => {
        const timer = setTimeout(resolve, 4 * reconnectMs);
        this.#wake = () => {
          clearTimeout(timer);
          resolve();
        };
      });
    }
    await opened?.close();
  }
}
