/**
 * Reads one lane's stream for this process: takes frames that no other process holds, keeps them until their unit is
 * confirmed, and confirms them to the servers then. A frame that is held longer than the time of a redelivery is
 * renewed. A message that is no intact frame is damage: its bytes go to quarantine, and reading continues.
 */
import { setTimeout as sleep } from 'node:timers/promises';
import type { Consumer, JsMsg } from '@nats-io/jetstream';
import { assert, messageOf } from '../base/errors.ts';
import type { Log } from '../base/log.ts';
import type { Counter, Metrics } from '../base/metrics/metrics.ts';
import { type Lane, laneNames, type ShipUnit } from '../journal/journal.ts';
import type { Quarantine } from '../journal/quarantine.ts';
import type { FrameHead } from '../journal/segment.ts';
import { Fetches } from './fetches.ts';
import type { StreamClient } from './stream-client.ts';
import { decodeStreamFrame } from './stream-frame.ts';
import { type StreamSettings, streamName } from './stream-names.ts';

interface ReaderDeps {
  client: StreamClient;
  settings: StreamSettings;
  log: Log;
  metrics: Metrics;
  quarantine: Pick<Quarantine, 'addGap'>;
  /** Called when a frame has arrived. */
  onFrame: () => void;
}

interface Held {
  message: JsMsg;
  head: FrameHead;
  payload: Buffer;
}

/** Bytes of held frames from which on this process takes no more frames. */
const heldBytesMax = 16 * 1024 * 1024;
/** Held frames from which on this process takes no more frames. */
const heldFramesMax = 8_000;
const againMs = 250;
const damageRetryMs = 10_000;

export class LaneReader {
  readonly #lane: Lane;
  readonly #deps: ReaderDeps;
  readonly #redelivered: Counter;
  readonly #damaged: Counter;
  readonly #open = new Map<ShipUnit, Held[]>();
  /** The units of `next`, and when the servers took their frames. */
  readonly #given = new WeakMap<ShipUnit, readonly number[]>();
  readonly #renewing: NodeJS.Timeout;
  readonly #stopping = new AbortController();
  #untaken: Held[] = [];
  #running: Promise<void> = Promise.resolve();
  #onRoom: (() => void) | undefined;
  /** The highest order that was read. */
  orderMax = 0n;
  rowsUntaken = 0;
  rowsOpen = 0;
  #bytes = 0;
  readonly #fetches = new Fetches();

  constructor(lane: Lane, deps: ReaderDeps) {
    this.#lane = lane;
    this.#deps = deps;
    const help = 'Frames that the stream gave to a process again.';
    this.#redelivered = deps.metrics.counter('stream_redelivered_total', help);
    this.#damaged = deps.metrics.counter('stream_damaged_total', 'Messages of the stream that are no intact frames.');
    this.#renewing = setInterval(() => this.#renew(), (deps.settings.redeliverSeconds * 1000) / 3);
    this.#renewing.unref();
  }

  start(): void {
    this.#running = this.#run();
  }

  /** Bytes of frames that are held. */
  get bytes(): number {
    return this.#bytes;
  }

  /** Journaled time of the oldest frame that is held. */
  get oldestAt(): number | undefined {
    return oldestOf([this.#untaken, ...this.#open.values()]);
  }

  /** Journaled time of the oldest frame that no unit holds. */
  get oldestUntakenAt(): number | undefined {
    return oldestOf([this.#untaken]);
  }

  get orderUntakenMin(): bigint | undefined {
    return lowest(this.#untaken);
  }

  get orderOpenMin(): bigint | undefined {
    let min: bigint | undefined;
    for (const group of this.#open.values()) {
      const order = lowest(group);
      if (order !== undefined && (min === undefined || order < min)) min = order;
    }
    return min;
  }

  next(rowsMax: number, bytesMax: number): ShipUnit | undefined {
    if (this.#untaken.length === 0) return undefined;
    let rows = 0;
    let bytes = 0;
    let count = 0;
    for (const { head, payload } of this.#untaken) {
      if (count > 0 && (rows + head.rows > rowsMax || bytes + payload.length > bytesMax)) break;
      rows += head.rows;
      bytes += payload.length;
      count += 1;
    }
    const taken = this.#untaken.splice(0, count);
    this.rowsUntaken -= rows;
    this.rowsOpen += rows;
    // Frames of several processes come in any order. The parts of shipping expect rising orders in a unit.
    const sorted = taken.toSorted((a, b) => (a.head.order < b.head.order ? -1 : 1));
    const times = taken.map(({ head }) => head.writtenMs);
    const unit: ShipUnit = {
      lane: this.#lane,
      payloads: sorted.map(({ payload }) => payload),
      frames: count,
      rows,
      bytes,
      orderMin: sorted[0]!.head.order,
      orderMax: sorted.at(-1)!.head.order,
      orders: sorted.map(({ head }) => head.order),
      writtenMsMin: Math.min(...times),
      writtenMsMax: Math.max(...times),
    };
    this.#open.set(unit, taken);
    this.#given.set(
      unit,
      sorted.map(({ message }) => message.time.getTime()),
    );
    return unit;
  }

  /** True for a unit of `next`. */
  gave(unit: ShipUnit): boolean {
    return this.#given.has(unit);
  }

  /** Returns when the servers took the frames of a unit, in milliseconds and in the order of `orders`. */
  acceptedMs(unit: ShipUnit): readonly number[] {
    return this.#given.get(unit)!;
  }

  confirm(unit: ShipUnit): void {
    const held = this.#open.get(unit);
    // An insert may end after `close`, which has given the frames back to the servers.
    if (held === undefined && this.#stopping.signal.aborted) return;
    assert(held, 'a unit of this stream is confirmed once');
    this.#open.delete(unit);
    for (const { message, head, payload } of held) {
      message.ack();
      this.rowsOpen -= head.rows;
      this.#bytes -= payload.length;
    }
    this.#onRoom?.();
  }

  /**
   * Takes no more frames. Resolves when no request runs, so that no frame is in transit. Frames that no unit holds stay
   * until `close`.
   */
  async stopTaking(): Promise<void> {
    this.#stopping.abort();
    this.#onRoom?.();
    await this.#fetches.end(this.#running);
  }

  async close(): Promise<void> {
    await this.stopTaking();
    clearInterval(this.#renewing);
    for (const { message } of [...this.#untaken, ...[...this.#open.values()].flat()]) message.nak();
    this.#untaken = [];
    this.#open.clear();
    this.rowsUntaken = this.rowsOpen = this.#bytes = 0;
  }

  async #run(): Promise<void> {
    const { client, settings, log } = this.#deps;
    const { signal } = this.#stopping;
    let consumer: Consumer | undefined;
    let failure = '';
    while (!signal.aborted) {
      if (this.#isFull) {
        await new Promise<void>((resolve) => {
          this.#onRoom = resolve;
        });
        continue;
      }
      const startedAt = performance.now();
      try {
        if (client.link) {
          consumer ??= await client.link.consumer(streamName(settings, this.#lane));
          const count = await this.#fetches.fetch(consumer, (message) => this.#receive(message));
          client.link.answered('read');
          if (failure !== '') log.info('stream_read_again', { lane: laneNames[this.#lane] });
          failure = '';
          if (count > 0) continue;
        }
      } catch (error) {
        // `stream-watch.ts` makes a missing stream again.
        consumer = undefined;
        client.link?.failed('read', error);
        if (messageOf(error) !== failure && !signal.aborted) {
          failure = messageOf(error);
          log.warn('stream_not_read', { lane: laneNames[this.#lane], reason: failure });
        }
      }
      if (performance.now() - startedAt < againMs) await sleep(againMs, undefined, { signal }).catch(() => {});
    }
  }

  get #isFull(): boolean {
    const frames = this.#untaken.length + [...this.#open.values()].reduce((sum, held) => sum + held.length, 0);
    return this.#bytes >= heldBytesMax || frames >= heldFramesMax;
  }

  /** Returns the bytes of the frame. */
  async #receive(message: JsMsg): Promise<number> {
    if (message.redelivered) this.#redelivered.add(1);
    const bytes = Buffer.from(message.data.buffer, message.data.byteOffset, message.data.length);
    const frame = decodeStreamFrame(bytes);
    if (!frame) {
      await this.#setAside(message, bytes);
      return bytes.length;
    }
    const { head, payload } = frame;
    if (head.rows === 0) {
      message.ack();
      return bytes.length;
    }
    this.#untaken.push({ message, head, payload });
    this.rowsUntaken += head.rows;
    this.#bytes += payload.length;
    if (head.order > this.orderMax) this.orderMax = head.order;
    this.#deps.onFrame();
    return payload.length;
  }

  async #setAside(message: JsMsg, bytes: Buffer): Promise<void> {
    const { settings, quarantine, log } = this.#deps;
    const stream = streamName(settings, this.#lane);
    try {
      await quarantine.addGap(stream, message.seq, bytes);
      this.#damaged.add(1);
      log.error('stream_frame_damaged', { stream, number: message.seq, subject: message.subject, bytes: bytes.length });
      message.ack();
    } catch (error) {
      log.error('stream_damage_not_kept', { stream, number: message.seq, reason: messageOf(error) });
      message.nak(damageRetryMs);
    }
  }

  /** Keeps the servers from giving frames that wait here to another process. */
  #renew(): void {
    if (this.#deps.client.link?.isConnected !== true) return;
    for (const { message } of this.#untaken) message.working();
    for (const held of this.#open.values()) for (const { message } of held) message.working();
  }
}

function oldestOf(groups: readonly (readonly Held[])[]): number | undefined {
  let oldest: number | undefined;
  for (const group of groups) for (const { head } of group) oldest = Math.min(oldest ?? head.writtenMs, head.writtenMs);
  return oldest;
}

function lowest(held: readonly Held[]): bigint | undefined {
  let min: bigint | undefined;
  for (const { head } of held) if (min === undefined || head.order < min) min = head.order;
  return min;
}
