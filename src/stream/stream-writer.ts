/**
 * Publishes frames to the streams. An append resolves when a majority of the servers has synced each of its frames. The
 * frames of an append are sent at the same time. A frame without an answer is published again until the time of the
 * append is over: rows are idempotent by their order numbers, so no token marks a repetition. Without a majority the
 * append is refused, or goes to the journal of this host (`STREAM_FALLBACK`).
 */
import { setTimeout as sleep } from 'node:timers/promises';
import { JetStreamApiError } from '@nats-io/jetstream';
import type { Clock } from '../base/clock.ts';
import { assert, Fault } from '../base/errors.ts';
import type { Log } from '../base/log.ts';
import type { Counter, Metrics } from '../base/metrics/metrics.ts';
import { type Journal, type JournalFrame, lanes, live } from '../journal/journal.ts';
import { OwnFrames } from './own-frames.ts';
import {
  leaderlessCode,
  noMajority,
  OtherStream,
  type StreamClient,
  type StreamSettings,
  streamName,
  subjectOf,
} from './stream-client.ts';
import { frameTooLarge, streamAway, streamFull, streamSlow } from './stream-faults.ts';
import { encodeStreamFrame, payloadBytesOf, plainStreamFrame } from './stream-frame.ts';
import { bucketOf } from './stream-frames.ts';

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

export class StreamWriter {
  readonly #deps: WriterDeps;
  readonly #retries: Counter;
  readonly #fallbacks: Counter;
  readonly own: [OwnFrames, OwnFrames] = [new OwnFrames(), new OwnFrames()];
  /** Why the stream accepts nothing; undefined while it accepts frames. */
  #away: string | undefined;
  #awaySince = 0;
  #fullUntil = Number.NEGATIVE_INFINITY;
  #appendingSince: number | undefined;
  #orderInFlight: bigint | undefined;
  #orderBegun = 0n;
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

  /** Why the stream accepts nothing now; undefined while it accepts frames. */
  get away(): string | undefined {
    const { failure, silence } = this.#deps.client;
    return failure ?? (this.#away && (silence ?? this.#away));
  }

  /** As `away`, also for a process that publishes nothing. */
  get unavailable(): string | undefined {
    return this.away ?? this.#deps.client.silence;
  }

  get isFallback(): boolean {
    return this.#deps.settings.fallback === 'journal';
  }

  /** The lowest order of the append that runs. */
  get orderInFlight(): bigint | undefined {
    return this.#orderInFlight;
  }

  /** The highest order that was ever given to `append`. */
  get orderBegun(): bigint {
    return this.#orderBegun;
  }

  /** Returns the reason why telemetry is refused now. Called ten times a second. */
  refusal(): Fault | undefined {
    const { settings, clock } = this.#deps;
    const now = clock.monotonic();
    if (now < this.#fullUntil) return streamFull(settings.bytesMax);
    if (this.away !== undefined) {
      this.#probeLater();
      return this.isFallback ? undefined : streamAway(this.away);
    }
    // Without messages nothing else would tell that there is no majority, and readiness would not say so.
    if (this.#deps.client.silence !== undefined) this.#probeLater();
    const isSlow = this.#appendingSince !== undefined && now - this.#appendingSince > 2 * attemptMsMax;
    return isSlow ? streamSlow() : undefined;
  }

  /** Rejects with the Fault of the senders. One append runs at a time. */
  async append(frames: readonly JournalFrame[]): Promise<void> {
    assert(this.#orderInFlight === undefined && frames.length > 0, 'one append of frames at a time');
    const { clock } = this.#deps;
    this.#orderInFlight = frames[0]!.order;
    this.#orderBegun = frames.at(-1)!.order;
    this.#appendingSince = clock.monotonic();
    try {
      await this.#appendSomewhere(frames);
    } finally {
      this.#orderInFlight = undefined;
      this.#appendingSince = undefined;
    }
  }

  close(): void {
    this.#closed = true;
    clearTimeout(this.#probing);
  }

  async #appendSomewhere(frames: readonly JournalFrame[]): Promise<void> {
    const { settings, local } = this.#deps;
    if (this.isFallback && this.away !== undefined) {
      this.#probeLater();
    } else {
      const fault = await this.#publishAll(frames, this.isFallback ? attemptMsMax : settings.ackMsMax);
      if (fault === undefined) return;
      if (!this.isFallback || fault.reason !== 'stream_away') throw fault;
    }
    this.#fallbacks.add(1);
    await local.append(frames);
  }

  /** Returns the first fault. Frames that were published nevertheless are in the stream, and are shipped. */
  async #publishAll(frames: readonly JournalFrame[], msMax: number): Promise<Fault | undefined> {
    const { clock, log } = this.#deps;
    const deadline = clock.monotonic() + msMax;
    const before = lanes.map((lane) => this.own[lane].lastMax);
    const results = await Promise.allSettled(frames.map((frame) => this.#publish(frame, deadline)));
    const lasts: [number, number] = [0, 0];
    const firsts: [bigint | undefined, bigint | undefined] = [undefined, undefined];
    for (const [i, result] of results.entries()) {
      if (result.status === 'rejected') continue;
      const { lane, order } = frames[i]!;
      firsts[lane] ??= order;
      lasts[lane] = Math.max(lasts[lane], result.value);
      if (result.value > before[lane]!) continue;
      log.error('stream_numbers_repeated', { lane, number: result.value, before: before[lane]! });
      this.own[lane].reset();
    }
    for (const lane of lanes) if (firsts[lane] !== undefined) this.own[lane].add(firsts[lane], lasts[lane]);
    const failed = results.find((result) => result.status === 'rejected');
    if (!failed) return undefined;
    if (!(failed.reason instanceof Fault)) throw failed.reason;
    const fault = failed.reason;
    if (fault.reason === 'stream_full') this.#fullUntil = clock.monotonic() + fullMs;
    return fault;
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
      let why = client.failure ?? noMajority;
      const left = deadline - clock.monotonic();
      try {
        const { link } = client;
        // A server that takes less than a commit may need, or a stream that was changed, is no fault of these messages.
        if (link && client.failure === undefined) {
          if (link.payloadBytesMax > 0 && payloadBytes + messageHeadBytes > link.payloadBytesMax) {
            throw frameTooLarge(payloadBytes, link.payloadBytesMax);
          }
          const format = link.formats[frame.lane];
          if (message?.format !== format) {
            message = { format, bytes: await encodeStreamFrame(frame, writtenMs, format) };
          }
          return await link.publish(stream, subject, message.bytes, Math.max(1, Math.min(attemptMsMax, left)));
        }
      } catch (error) {
        if (error instanceof Fault) throw error;
        if (isFull(error)) throw streamFull(settings.bytesMax);
        why = this.#whyOf(error);
      }
      if (clock.monotonic() + againMs >= deadline || this.#closed) {
        this.#noteAway(why);
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

  #noteAway(reason: string): void {
    const { log, clock } = this.#deps;
    if (this.#away === undefined) this.#awaySince = clock.monotonic();
    if (this.#away !== reason) log.warn('stream_away', { reason });
    this.#away = reason;
    this.#probeLater();
  }

  /** Publishes a frame without rows until one is acknowledged: only that proves a majority. */
  #probeLater(): void {
    if (this.#probing !== undefined || this.#closed) return;
    this.#probing = setTimeout(async () => {
      await this.#probe();
      this.#probing = undefined;
      if (this.#away !== undefined) this.#probeLater();
    }, probeMs);
    this.#probing.unref();
  }

  async #probe(): Promise<void> {
    const { client, settings, clock, log } = this.#deps;
    if (!client.link || (this.#away === undefined && client.silence === undefined)) return;
    const bytes = plainStreamFrame({ lane: live, order: 0n, rows: 0, parts: [] }, clock.now());
    // A bucket that no device has.
    const subject = subjectOf(settings, live, 'probe');
    try {
      await client.link.publish(streamName(settings, live), subject, bytes, attemptMsMax);
    } catch (error) {
      // A stream without room has a majority: that refusal has a reason of its own.
      if (!isFull(error)) {
        this.#noteAway(this.#whyOf(error));
        return;
      }
    }
    if (this.#away === undefined) return;
    this.#away = undefined;
    log.info('stream_back', { awayMs: Math.round(clock.monotonic() - this.#awaySince) });
  }
}

function isFull(error: unknown): boolean {
  return error instanceof JetStreamApiError && fullCodes.has(error.code);
}
