/** One connection to the servers of the stream, and the calls that the other files make over it. */
import { setTimeout as sleep } from 'node:timers/promises';
import {
  AckPolicy,
  type Consumer,
  type ConsumerConfig,
  type ConsumerInfo,
  DeliverPolicy,
  JetStreamApiError,
  type JetStreamClient,
  type JetStreamManager,
  jetstreamManager,
  type OrderedConsumerOptions,
  type PubAck,
  type StreamInfo,
  type StreamInfoRequestOptions,
} from '@nats-io/jetstream';
import { type NatsConnection, PermissionViolationError } from '@nats-io/transport-node';
import { StartError } from '../base/errors.ts';
import { sizeText } from '../base/size-text.ts';
import { connectTo } from './connect.ts';
import { type MissingServers, missingServers } from './missing-servers.ts';
import { streamFormat } from './stream-frame.ts';
import { consumerName, type StreamSettings } from './stream-names.ts';

/** The limit of one call of the management. */
const callMsMax = 3_000;
/** A stop waits so long for servers that do not answer. */
const flushMsMax = 1_000;
/** A server without an answer for so long is left for another one: the others may have a majority without it. */
const unansweredMsMax = 4_000;
/** Calls for a state until the leader is the server that answers, and the pause between two calls. */
const leaderTriesMax = 10;
const leaderPauseMs = 100;
/** The servers' code for a server that knows no leader of the servers. */
export const leaderlessCode = 10_008;
/** The servers' code for a new stream whose name another stream has, with another first number. */
export const streamNameInUse = 10_058;
/** The servers' codes for a stream, and for a consumer, that does not exist. */
export const streamNotFound = 10_059;
export const consumerNotFound = 10_014;
/** The servers' codes for a consumer that the limits of the servers, or of the account, do not allow. */
export const consumerLimits: ReadonlySet<number> = new Set([10_026, 10_121]);

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

/** A member of the metadata of a stream, which its servers keep apart from the position in PostgreSQL. */
const removedMember = 'millrace_removed';

export interface ConsumerState {
  /** Every message up to this one is confirmed; 0 when the consumer may have skipped messages. */
  floor: number;
  /** Messages that are not confirmed. */
  waiting: number;
  redelivered: number;
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

/** -1 is no limit, which an operator may set while hosts run. */
function limitOf(max_bytes: number): number {
  return max_bytes > 0 ? max_bytes : Number.MAX_SAFE_INTEGER;
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
  readonly #onViolation = new Set<(violation: PermissionViolationError) => void>();
  /** Since when calls of each kind have failed, in monotonic milliseconds. An answer removes its kind. */
  readonly #unansweredSince = new Map<MajorityCall, number>();

  private constructor(connection: NatsConnection, manager: JetStreamManager) {
    this.connection = connection;
    this.manager = manager;
    this.#publisher = manager.jetstream();
    void this.#follow();
  }

  async #follow(): Promise<void> {
    for await (const status of this.connection.status()) {
      const { type } = status;
      if (status.type === 'error' && status.error instanceof PermissionViolationError) {
        for (const note of this.#onViolation) note(status.error);
      }
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

  /** Publishes messages with their payloads, and returns those that the permissions of the login forbid. */
  async violationsOf(messages: readonly [subject: string, payload: string][]): Promise<PermissionViolationError[]> {
    const violations: PermissionViolationError[] = [];
    const note = (violation: PermissionViolationError) => {
      if (messages.some(([subject]) => subject === violation.subject)) violations.push(violation);
    };
    this.#onViolation.add(note);
    try {
      for (const [subject, payload] of messages) this.connection.publish(subject, payload);
      // The server sends its refusals before the answer to a flush.
      await Promise.race([this.connection.flush(), sleep(callMsMax, undefined, { ref: false })]);
      // The client passes a refusal to `#follow` after the turn in which it arrived.
      await sleep(0);
      return violations;
    } finally {
      this.#onViolation.delete(note);
    }
  }

  get payloadBytesMax(): number {
    return this.connection.info?.max_payload ?? 0;
  }

  /** Why the server cannot take every frame: a setting of a server may change while this process runs. */
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
    const { created, state, config, cluster } = await this.streamInfo(stream, { deleted_details: true });
    const { messages, first_seq, last_seq, bytes, first_ts, deleted = [] } = state;
    return {
      created: String(created),
      // The servers leave it out when it is 1.
      begin: Math.max(1, config.first_seq ?? 1),
      first: messages === 0 ? last_seq + 1 : first_seq,
      last: last_seq,
      bytes,
      bytesMax: limitOf(config.max_bytes),
      firstAtMs: messages === 0 ? undefined : Date.parse(String(first_ts)),
      lost: deleted,
      removed: Number(config.metadata?.[removedMember] ?? 0),
      missing: missingServers(cluster),
    };
  }

  /** Returns what the leader of the stream says. */
  streamInfo(stream: string, options?: Partial<StreamInfoRequestOptions>): Promise<StreamInfo> {
    return this.#ofLeader(`the stream ${stream}`, () => this.manager.streams.info(stream, options));
  }

  /** Returns what the leader of the consumer says. */
  consumerInfo(stream: string, name = consumerName): Promise<ConsumerInfo> {
    const what = `the consumer ${name} of the stream ${stream}`;
    return this.#ofLeader(what, () => this.manager.consumers.info(stream, name));
  }

  /**
   * Repeats a call until a leader answers. A server that has just learned of a stream or a consumer, as one that was
   * frozen, answers in the place of the leader for a moment, and says that nothing is there and no process reads.
   */
  async #ofLeader<T extends StreamInfo | ConsumerInfo>(what: string, call: () => Promise<T>): Promise<T> {
    for (let tries = 1; tries <= leaderTriesMax; tries += 1) {
      const info = await call();
      if (this.connection.info?.cluster === undefined || info.cluster?.leader !== undefined) return info;
      await sleep(leaderPauseMs);
    }
    throw new Error(`no server leads ${what}`);
  }

  async consumerState(stream: string, name = consumerName): Promise<ConsumerState> {
    const info = await this.consumerInfo(stream, name);
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

  /** Returns what the stream holds, and its limit, which an operator may have raised above that of the settings. */
  async room(stream: string): Promise<{ bytes: number; bytesMax: number }> {
    const { state, config } = await this.streamInfo(stream);
    return { bytes: state.bytes, bytesMax: limitOf(config.max_bytes) };
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
