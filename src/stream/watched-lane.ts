/**
 * What this process knows of the stream of one lane, and since when. `stream-watch.ts` reads the servers and decides;
 * the metrics of the stream show what it read last.
 */
import type { Clock } from '../base/clock.ts';
import type { Metrics } from '../base/metrics/metrics.ts';
import type { StreamRoom } from '../ingest/stream-health.ts';
import { type Lane, laneNames } from '../journal/journal.ts';
import type { ConsumerState, LaneState } from './stream-link.ts';

/** What the worker that leads has read of a stream and of its consumer. */
export interface Seen extends LaneState, ConsumerState {
  writer: number | undefined;
  /** Time of the first message that ClickHouse does not have. */
  oldestAtMs: number | undefined;
  at: number;
  /** Since when servers have not followed the leader; undefined while all of them do. */
  missingSince: number | undefined;
}

/** What the stream held, and what this process had published before: the number of appends, and their bytes. */
interface Room extends StreamRoom {
  added: number;
  published: number;
}

/** The oldest frame of this process that is not confirmed. */
interface Oldest {
  order: bigint;
  /** Monotonic times: since when the frame is the oldest one, and since when the stream ends before the last frame. */
  since: number;
  endsEarlySince: number | undefined;
}

/** A state that is older than this says nothing about the stream any more. */
const staleMs = 10_000;
/** A stream that ends too early for this long has lost messages. */
const cutMsMin = 3_000;
/** A server that does not follow for this long is unavailable; one that is behind for a moment is not. */
const missingMsMin = 5_000;

export class WatchedLane {
  readonly #clock: Clock;
  /** What was read last, however long ago. */
  seen: Seen | undefined;
  #room: Room | undefined;
  /** Bytes that were appended to the stream between two reads, estimated by the sizes of the last frames. */
  written = 0;
  #frameBytes = 0;
  #oldest: Oldest | undefined;
  #cutSince: number | undefined;
  /** The present failure; empty: none. */
  failure = '';
  /** True while the stream, or its consumer, is not there. */
  isMissing = false;

  constructor(clock: Clock) {
    this.#clock = clock;
  }

  /** What was read lately; undefined while the servers do not answer. */
  get fresh(): Seen | undefined {
    return this.seen && this.#isFresh(this.seen.at) ? this.seen : undefined;
  }

  /** Keeps what was read, unless a read that began later has ended before. */
  note(seen: Seen): void {
    const before = this.seen;
    if (before !== undefined && before.at > seen.at) return;
    const { created, first, last, bytes } = seen;
    const frames = last - first + 1;
    if (frames > 0) this.#frameBytes = bytes / frames;
    if (before?.created === created) this.written += Math.max(0, last - before.last) * this.#frameBytes;
    this.seen = seen;
  }

  /**
   * Returns what the stream held lately, with what this process has published since: one sender may fill a small stream
   * between two reads. `published`: the bytes that this process has published. Undefined while the state is not known.
   */
  room(published: number): StreamRoom | undefined {
    if (this.#room === undefined || !this.#isFresh(this.#room.at)) return undefined;
    const { bytes, bytesMax, at, published: before } = this.#room;
    return { bytes: bytes + published - before, bytesMax, at };
  }

  noteRoom(room: Room): void {
    this.#room = room;
  }

  /**
   * True when the room must be read. A process that publishes nothing needs no room. While senders are refused for
   * their shares, room may come. `added`: the number of frames that this process has published.
   */
  isRoomDue(added: number): boolean {
    const known = this.#room;
    return known ? known.added !== added || known.bytes > known.bytesMax / 2 : added > 0;
  }

  /**
   * True when the frame of this order has been the oldest unconfirmed one of this process for so long that the stream
   * may have lost it.
   */
  isWaitingLong(order: bigint | undefined, now: number): order is bigint {
    if (order === undefined || this.#oldest?.order !== order) {
      this.#oldest = order === undefined ? undefined : { order, since: now, endsEarlySince: undefined };
      return false;
    }
    return now - this.#oldest.since >= staleMs;
  }

  /** Called when the stream holds the frames up to the last one of this process: the oldest frame waits on. */
  notLost(order: bigint, now: number): void {
    this.#oldest = { order, since: now, endsEarlySince: undefined };
  }

  /** Called when the stream ends before the last frame of this process. True when that has been so for long. */
  isLostForLong(now: number): boolean {
    if (this.#oldest === undefined) return false;
    this.#oldest.endsEarlySince ??= now;
    return now - this.#oldest.endsEarlySince >= cutMsMin;
  }

  /** Called when the stream ends before the position that is known of it. True when that has been so for long. */
  isCutForLong(): boolean {
    const now = this.#clock.monotonic();
    this.#cutSince ??= now;
    return now - this.#cutSince >= cutMsMin;
  }

  notCut(): void {
    this.#cutSince = undefined;
  }

  #isFresh(at: number): boolean {
    return this.#clock.monotonic() - at < staleMs;
  }
}

/** Returns the servers that are unavailable. */
export function missingOf({ missing, missingSince, at }: Seen): LaneState['missing'] {
  return missingSince !== undefined && at - missingSince >= missingMsMin ? missing : undefined;
}

/**
 * Registers the metrics of one lane. Servers that do not answer may hold frames: a 0 would say that none wait there.
 */
export function observeLane(metrics: Metrics, clock: Clock, lane: Lane, watched: WatchedLane): void {
  const observe = (name: string, help: string, of: (seen: Seen) => number) => {
    const read = () => {
      const seen = watched.fresh;
      return seen && of(seen);
    };
    metrics.observed(name, help, read, 'max', { lane: laneNames[lane] });
  };
  observe('stream_bytes', 'Bytes of the stream of a lane.', ({ bytes }) => bytes);
  observe('stream_bytes_max', 'Limit of the stream of a lane at its servers.', ({ bytesMax }) => bytesMax);
  observe('stream_servers_missing', 'Servers of the stream that are unavailable.', (seen) => {
    return missingOf(seen)?.names.length ?? 0;
  });
  observe('stream_frames', 'Frames of the stream that ClickHouse does not have.', ({ waiting }) => waiting);
  observe('stream_frames_redelivered', 'Frames that are given again at the moment.', (seen) => seen.redelivered);
  observe('stream_oldest_seconds', 'Age of the oldest frame of the stream that waits.', (seen) =>
    seen.waiting === 0 || seen.oldestAtMs === undefined ? 0 : Math.max(0, clock.now() - seen.oldestAtMs) / 1000,
  );
}
