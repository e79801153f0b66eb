/**
 * Publishes frames to the streams. An append resolves when a majority of the servers has synced each of its frames. The
 * frames of an append are sent at the same time, and appends of the lanes run beside each other. A frame without an
 * answer is published again until the time of the append is over: rows are idempotent by their order numbers, so no
 * token marks a repetition. Without a majority the append is refused, or goes to the journal of this host
 * (`STREAM_FALLBACK`).
 */
import { setTimeout as sleep } from 'node:timers/promises';
import { JetStreamApiError } from '@nats-io/jetstream';
import type { Clock } from '../base/clock.ts';
import { assert, Fault } from '../base/errors.ts';
import type { Log } from '../base/log.ts';
import type { Counter, Metrics } from '../base/metrics/metrics.ts';
import { slowDisk } from '../ingest/journal-health.ts';
import { type Journal, type JournalFrame, type Lane, laneNames, lanes, late, live } from '../journal/journal.ts';
import { noMajority } from './connect-reason.ts';
import { OwnFrames } from './own-frames.ts';
import type { StreamClient } from './stream-client.ts';
import { frameTooLarge, ofLane, streamAway, streamFull, streamSlow } from './stream-faults.ts';
import { encodeStreamFrame, payloadBytesOf, plainStreamFrame } from './stream-frame.ts';
import { bucketOf } from './stream-frames.ts';
import { leaderlessCode, OtherStream } from './stream-link.ts';
import { type StreamSettings, streamName, subjectOf } from './stream-names.ts';

interface WriterDeps {
  client: StreamClient;
  settings: StreamSettings;
  clock: Clock;
  log: Log;
  metrics: Metrics;
  /** Takes frames while the stream has no majority and `fallback` is `journal`. */
  local: Pick<Journal, 'append'>;
}

/** The time of one attempt, in which servers can choose a new leader. */
const attemptMsMax = 2_000;
const againMs = 100;
const probeMs = 1_000;
/** Telemetry is refused for this long after the stream was full; then a commit tries again. */
const fullMs = 1_000;
/** The servers' code for a message that does not fit the limits of the stream, and for disks without room. */
const fullCodes = new Set([10_077, 10_023, 10_047, 10_028]);
const messageHeadBytes = 1_024;
/** Bytes of rows after which older ones count half in `deflation`. */
const recentBytes = 16 * 1024 * 1024;

interface Sizes {
  rows: number;
  messages: number;
}

/** Frames of one append and lane that have no answer yet. */
interface Running {
  /** Their lowest order. */
  order: bigint;
  since: number;
}

/** The frames of one lane of an append. */
interface PartOfAppend {
  lane: Lane;
  frames: readonly JournalFrame[];
  running: Running;
}

/** A frame that the stream has not acknowledged, and why. */
interface Failed {
  frame: JournalFrame;
  fault: Fault;
}

export class StreamWriter {
  readonly #deps: WriterDeps;
  readonly #retries: Counter;
  readonly #fallbacks: Counter;
  readonly own: [OwnFrames, OwnFrames] = [new OwnFrames(), new OwnFrames()];
  /** Why the stream of a lane accepts nothing; undefined while it accepts frames. */
  readonly #away: [string | undefined, string | undefined] = [undefined, undefined];
  readonly #awaySince: [number, number] = [0, 0];
  readonly #fullUntil: [number, number] = [Number.NEGATIVE_INFINITY, Number.NEGATIVE_INFINITY];
  readonly #running: readonly [Set<Running>, Set<Running>] = [new Set(), new Set()];
  /** Recent bytes of rows, and of the messages that they became. */
  readonly #sizes: readonly [Sizes, Sizes] = [
    { rows: 0, messages: 0 },
    { rows: 0, messages: 0 },
  ];
  /** Bytes of the messages of each lane that the stream has acknowledged to this process. */
  readonly published: [number, number] = [0, 0];
  #orderBegun = 0n;
  /** Resolves when all appends that have begun have ended. */
  #appends: Promise<void> = Promise.resolve();
  #probing: NodeJS.Timeout | undefined;
  #closed = false;

  constructor(deps: WriterDeps) {
    this.#deps = deps;
    const { metrics } = deps;
    this.#retries = metrics.counter(
      'stream_published_again_total',
      'Frames that had no answer and were published again.',
    );
    const help = 'Commits that went to the journal because the stream had no majority.';
    this.#fallbacks = metrics.counter('stream_fallbacks_total', help);
    metrics.observed(
      'stream_away',
      '1: the stream accepts no frames.',
      () => Number(this.unavailable !== undefined),
      'max',
    );
  }

  /** Why a stream accepts nothing now; undefined while both accept frames. */
  get away(): string | undefined {
    return this.#awayOf(live) ?? this.#awayOf(late);
  }

  #awayOf(lane: Lane): string | undefined {
    const { client } = this.#deps;
    return client.failureOf(lane) ?? (this.#away[lane] && (client.silence ?? this.#away[lane]));
  }

  /** Why a stream accepts nothing now, noticed also by a process that publishes nothing. */
  get unavailable(): string | undefined {
    return this.away ?? this.#deps.client.silence;
  }

  get isFallback(): boolean {
    return this.#deps.settings.fallback === 'journal';
  }

  /** The lowest order of the appends that run. */
  get orderInFlight(): bigint | undefined {
    let min: bigint | undefined;
    for (const lane of lanes)
      for (const { order } of this.#running[lane]) if (min === undefined || order < min) min = order;
    return min;
  }

  /** Bytes of recent messages for each byte of their rows. */
  deflation(lane: Lane): number {
    const { rows, messages } = this.#sizes[lane];
    return rows === 0 ? 1 : messages / rows;
  }

  /** The highest order that was ever given to `append`. */
  get orderBegun(): bigint {
    return this.#orderBegun;
  }

  /** Returns the reason why rows of the lane are refused now. Called ten times a second. */
  refusal(lane: Lane = live): Fault | undefined {
    const fault = this.#refusal(lane);
    return fault && ofLane(lane, fault);
  }

  #refusal(lane: Lane): Fault | undefined {
    const { clock, client } = this.#deps;
    const now = clock.monotonic();
    if (now < this.#fullUntil[lane]) return streamFull(lane);
    const away = this.#awayOf(lane);
    if (away !== undefined) {
      this.#probeLater();
      if (!this.isFallback) return streamAway(away);
    }
    // Without messages nothing else notices that there is no majority, and readiness would not say so.
    if (client.silence !== undefined) this.#probeLater();
    const isSlow = [...this.#running[lane]].some(({ since }) => now - since > 2 * attemptMsMax);
    if (!isSlow) return undefined;
    return away === undefined ? streamSlow(lane) : slowDisk();
  }

  /** Rejects with the Fault of the senders. Orders rise from frame to frame and from append to append. */
  async append(frames: readonly JournalFrame[]): Promise<void> {
    assert(frames.length > 0, 'an append has frames');
    const first = frames[0]!.order;
    assert(first > this.#orderBegun, 'orders rise from append to append');
    this.#orderBegun = frames.at(-1)!.order;
    const earlier = this.#appends;
    const appended = this.#append(frames, earlier);
    const ended = appended.catch(() => {});
    this.#appends = earlier.then(() => ended);
    return appended;
  }

  async #append(frames: readonly JournalFrame[], earlier: Promise<void>): Promise<void> {
    const since = this.#deps.clock.monotonic();
    const parts = lanes.flatMap((lane) => {
      const ofLane = frames.filter((frame) => frame.lane === lane);
      return ofLane.length === 0 ? [] : [{ lane, frames: ofLane, running: { order: ofLane[0]!.order, since } }];
    });
    for (const { lane, running } of parts) this.#running[lane].add(running);
    try {
      const failed = (await Promise.all(parts.map((part) => this.#publishLane(part)))).flat();
      if (failed.length === 0) return;
      const refused = failed.find(({ fault }) => !this.isFallback || fault.reason !== 'stream_away');
      if (refused !== undefined) throw ofLane(refused.frame.lane, refused.fault);
      const left = new Set(failed.map(({ frame }) => frame));
      this.#fallbacks.add(1);
      // The journal takes one append at a time, with rising orders. The earlier appends end within `attemptMsMax`.
      await earlier;
      await this.#deps.local.append(frames.filter((frame) => left.has(frame)));
    } finally {
      for (const { lane, running } of parts) this.#running[lane].delete(running);
    }
  }

  close(): void {
    this.#closed = true;
    clearTimeout(this.#probing);
  }

  /**
   * Returns the frames that were not published, with their faults. The others are in the stream and are shipped, also
   * when the append is refused. A lane whose frames are all published does not wait for the other lane of the append.
   * Numbers that repeat are those of a stream that was made again by hand: it is checked before it counts.
   */
  async #publishLane({ lane, frames, running }: PartOfAppend): Promise<Failed[]> {
    const { client, clock, log, settings } = this.#deps;
    const away = this.isFallback ? this.#awayOf(lane) : undefined;
    if (away !== undefined) {
      this.#probeLater();
      return frames.map((frame) => ({ frame, fault: streamAway(away) }));
    }
    const deadline = clock.monotonic() + (this.isFallback ? attemptMsMax : settings.ackMsMax);
    const own = this.own[lane];
    const before = own.lastMax;
    const results = await Promise.allSettled(frames.map((frame) => this.#publish(frame, deadline)));
    const failed: Failed[] = [];
    let first: bigint | undefined;
    let last = 0;
    let isMadeAgain = false;
    for (const [i, result] of results.entries()) {
      const frame = frames[i]!;
      if (result.status === 'rejected') {
        if (!(result.reason instanceof Fault)) throw result.reason;
        failed.push({ frame, fault: result.reason });
        continue;
      }
      first ??= frame.order;
      last = Math.max(last, result.value);
      if (result.value > before) continue;
      log.error('stream_numbers_repeated', { lane, number: result.value, before });
      own.reset();
      isMadeAgain = true;
    }
    if (first !== undefined) own.add(first, last);
    if (isMadeAgain) {
      await client.checkAgain();
      const failure = client.failureOf(lane);
      if (failure !== undefined) return frames.map((frame) => ({ frame, fault: streamAway(failure) }));
    }
    if (failed.length === 0) this.#running[lane].delete(running);
    return failed;
  }

  /** Returns the number of the message. */
  async #publish(frame: JournalFrame, deadline: number): Promise<number> {
    const { client, settings, clock } = this.#deps;
    const payloadBytes = payloadBytesOf(frame);
    const writtenMs = clock.now();
    let message: { format: number; bytes: Buffer } | undefined;
    const stream = streamName(settings, frame.lane);
    const subject = subjectOf(settings, frame.lane, bucketOf(frame.device ?? 0, settings.subjects));
    for (;;) {
      let why = client.failureOf(frame.lane) ?? noMajority;
      const left = deadline - clock.monotonic();
      try {
        const { link } = client;
        // A server that takes less than a commit may need, or a stream that was changed, is no fault of these messages.
        if (link && client.failureOf(frame.lane) === undefined) {
          if (link.payloadBytesMax > 0 && payloadBytes + messageHeadBytes > link.payloadBytesMax) {
            throw frameTooLarge(payloadBytes, link.payloadBytesMax);
          }
          const format = link.formats[frame.lane];
          if (message?.format !== format) {
            message = { format, bytes: await encodeStreamFrame(frame, writtenMs, format) };
            this.#noteSizes(frame.lane, payloadBytes, message.bytes.length);
          }
          const attemptMs = Math.max(1, Math.min(attemptMsMax, left));
          const number = await link.publish(stream, subject, message.bytes, attemptMs);
          this.published[frame.lane] += message.bytes.length;
          return number;
        }
      } catch (error) {
        if (error instanceof Fault) throw error;
        if (isFull(error)) {
          this.#fullUntil[frame.lane] = clock.monotonic() + fullMs;
          throw streamFull(frame.lane);
        }
        why = this.#whyOf(error);
      }
      if (clock.monotonic() + againMs >= deadline || this.#closed) {
        this.#noteAway(frame.lane, why);
        throw streamAway(why);
      }
      this.#retries.add(1);
      await sleep(againMs);
    }
  }

  #whyOf(error: unknown): string {
    const { client } = this.#deps;
    if (error instanceof OtherStream) return error.message;
    if (client.silence !== undefined) return client.silence;
    return error instanceof JetStreamApiError && error.code !== leaderlessCode ? error.message : noMajority;
  }

  #noteSizes(lane: Lane, rows: number, messages: number): void {
    const sizes = this.#sizes[lane];
    sizes.rows += rows;
    sizes.messages += messages;
    if (sizes.rows < recentBytes) return;
    sizes.rows /= 2;
    sizes.messages /= 2;
  }

  #noteAway(lane: Lane, reason: string): void {
    const { log, clock } = this.#deps;
    if (this.#away[lane] === undefined) this.#awaySince[lane] = clock.monotonic();
    if (this.#away[lane] !== reason) log.warn('stream_away', { lane: laneNames[lane], reason });
    this.#away[lane] = reason;
    this.#probeLater();
  }

  /** Publishes a frame without rows until one is acknowledged: only that proves a majority. */
  #probeLater(): void {
    if (this.#probing !== undefined || this.#closed) return;
    this.#probing = setTimeout(async () => {
      await Promise.all(lanes.map((lane) => this.#probe(lane)));
      this.#probing = undefined;
      if (this.#away.some((reason) => reason !== undefined)) this.#probeLater();
    }, probeMs);
    this.#probing.unref();
  }

  async #probe(lane: Lane): Promise<void> {
    const { client, settings, clock, log } = this.#deps;
    if (!client.link || (this.#away[lane] === undefined && client.silence === undefined)) return;
    const bytes = plainStreamFrame({ lane, order: 0n, rows: 0, parts: [] }, clock.now());
    // A bucket that no device has.
    const subject = subjectOf(settings, lane, 'probe');
    try {
      await client.link.publish(streamName(settings, lane), subject, bytes, attemptMsMax);
    } catch (error) {
      // A stream without room has a majority: that refusal has a reason of its own.
      if (!isFull(error)) {
        this.#noteAway(lane, this.#whyOf(error));
        return;
      }
    }
    if (this.#away[lane] === undefined) return;
    this.#away[lane] = undefined;
    log.info('stream_back', { lane: laneNames[lane], awayMs: Math.round(clock.monotonic() - this.#awaySince[lane]) });
  }
}

function isFull(error: unknown): boolean {
  return error instanceof JetStreamApiError && fullCodes.has(error.code);
}
