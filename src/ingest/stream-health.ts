/**
 * Decides whether the stream of each lane can take telemetry (`ingest.ack: stream`): ten times a second why it refuses,
 * and after each commit, too, which shares senders have while it fills. A stream of late rows that is full or slow
 * refuses late rows only. Asked by `accept.ts`.
 */
import type { Clock } from '../base/clock.ts';
import { type Fault, unavailable } from '../base/errors.ts';
import type { Log } from '../base/log.ts';
import { type Lane, lanes, late, live } from '../journal/journal.ts';
import { BacklogShares, type Sender, type Shared } from './backlog-shares.ts';
import { ShareRefusals } from './share-refusals.ts';

/** What a stream holds, as its servers reported it. */
export interface StreamRoom {
  /** With what this process has published since the report. */
  bytes: number;
  bytesMax: number;
  /** Monotonic time of the report. */
  at: number;
}

/** The stream of one lane. */
export interface StreamOfLane {
  /** Returns why it accepts no rows now. */
  refusal(): Fault | undefined;
  /** Returns undefined while it is not known. */
  room(): StreamRoom | undefined;
  /** Returns the bytes of its messages for each byte of their rows. */
  deflation(): number;
}

interface StreamHealthDeps {
  streams: readonly [StreamOfLane, StreamOfLane];
  clock: Clock;
  log: Log;
  /** Workers of all hosts, which fill the streams together. */
  fleetWorkers?: (() => number) | undefined;
}

/** Time for which operators are shown a refusal. */
const shownMs = 10_000;

interface Shown {
  refusal: Fault;
  until: number;
}

const shared: { readonly [live]: Shared; readonly [late]: Shared } = {
  [live]: { what: 'the stream of live rows', reason: 'backlog_share' },
  // A sender without room for its late rows has room for its live rows.
  [late]: { what: 'the stream of late rows', reason: 'stream_late_share' },
};

export class StreamHealth {
  readonly #deps: StreamHealthDeps;
  readonly #refusals: [Fault | undefined, Fault | undefined] = [undefined, undefined];
  /** The last refusal of each lane, and the monotonic time until which operators are shown it. */
  readonly #shown: [Shown | undefined, Shown | undefined] = [undefined, undefined];
  readonly #shares: [BacklogShares | undefined, BacklogShares | undefined] = [undefined, undefined];
  readonly #shareRefusals: readonly [ShareRefusals, ShareRefusals];
  /** The report that the shares are of. */
  readonly #readAt: [number, number] = [0, 0];
  /** False: `admit` refuses nothing, and `add` counts nothing. */
  isLimiting = false;

  constructor(deps: StreamHealthDeps) {
    this.#deps = deps;
    this.#shareRefusals = [new ShareRefusals(deps.log, shared[live]), new ShareRefusals(deps.log, shared[late])];
  }

  /** Returns the reason for which all telemetry is refused, before it is decoded. */
  refusal(): Fault | undefined {
    return this.#refusals[live];
  }

  /**
   * Returns why rows of this lane are refused, or were within the last seconds. A full stream refuses all rows for one
   * second after each frame that it did not take; in between most senders are refused for their shares.
   */
  recentRefusal(lane: Lane): Fault | undefined {
    const shown = this.#shown[lane];
    return shown !== undefined && this.#deps.clock.monotonic() < shown.until ? shown.refusal : undefined;
  }

  check(): void {
    const now = this.#deps.clock.monotonic();
    for (const lane of lanes) {
      const refusal = this.#deps.streams[lane].refusal();
      this.#refusals[lane] = refusal;
      if (refusal !== undefined) this.#shown[lane] = { refusal, until: now + shownMs };
      this.#share(lane);
      this.#shareRefusals[lane].check(now, this.#shares[lane] !== undefined);
    }
    this.#limit();
  }

  /** Called after each commit: a few commits may fill what is left of a small stream. */
  committed(): void {
    for (const lane of lanes) this.#share(lane);
    this.#limit();
  }

  /** Throws the refusal of late rows, or 429 when the sender, its customer or its tenant has its share. */
  admit(lane: Lane, sender: Sender | undefined): void {
    const refusal = this.#refusals[lane];
    if (refusal !== undefined) throw refusal;
    if (sender !== undefined) this.#shares[lane]?.admit(sender);
  }

  /** Called with the bytes of rows that were accepted. */
  add(lane: Lane, sender: Sender, bytes: number): void {
    this.#shares[lane]?.add(sender, Math.ceil(bytes * this.#deps.streams[lane].deflation()));
  }

  #limit(): void {
    this.isLimiting = this.#refusals[late] !== undefined || this.#shares.some((shares) => shares !== undefined);
  }

  #share(lane: Lane): void {
    const { streams, clock, fleetWorkers } = this.#deps;
    const room = streams[lane].room();
    const half = room === undefined ? 0 : room.bytesMax / 2;
    if (room === undefined || room.bytes <= half) {
      this.#shares[lane] = undefined;
      return;
    }
    let shares = this.#shares[lane];
    // `add` counts what is accepted after a report.
    if (shares !== undefined && room.at === this.#readAt[lane]) return;
    shares ??= new BacklogShares(
      (kind, id) => this.#shareRefusals[lane].add(kind, id, clock.monotonic()),
      shared[lane],
    );
    this.#shares[lane] = shares;
    this.#readAt[lane] = room.at;
    shares.update(Math.max(0, room.bytesMax - room.bytes), room.bytes - half, fleetWorkers?.() ?? 1);
  }
}

/** Too many late rows of this worker wait for their stream. */
export function lateWaits(): Fault {
  return unavailable('stream_late', 'The stream of late rows is too slow for what comes in; send again.');
}
