/**
 * Inserts the frames of a unit into both tables until every row is stored or refused alone. Called by `lane.ts`,
 * `wide-rows.ts` and `suspect-trials.ts`. An error counts against the store until proven otherwise: rows are divided,
 * and a single row is refused, only while a control row is accepted. Inserts that take too long or too much memory are
 * repeated in halves.
 */
import { randomUUID } from 'node:crypto';
import { BufferPool } from '../base/buffer-pool.ts';
import type { Clock } from '../base/clock.ts';
import { assert, messageOf } from '../base/errors.ts';
import type { Log } from '../base/log.ts';
import type { Metrics } from '../base/metrics/metrics.ts';
import type { Sleep } from '../base/scheduler.ts';
import { type ClickHouse, ClickHouseError, isUnanswered } from '../clickhouse/client.ts';
import type { ShardMap } from '../clickhouse/shards.ts';
import { insertLatestOf, insertTelemetryOf } from '../clickhouse/statements.ts';
import { orderMs } from '../ingest/order-number.ts';
import type { ShipNotes, TimeRange } from '../journal/ship-notes.ts';
import { joinBlocks } from '../telemetry/join-blocks.ts';
import { packRecords } from '../telemetry/pack-records.ts';
import { Backoff } from './backoff.ts';
import type { ControlRow } from './control-row.ts';
import { failureOf, isNoAnswer, type Suspicion, suspicionOf, worstOf } from './insert-errors.ts';
import { halvesOf, isIndivisible, isRanged, type Piece, piecesOf, type StoredOf } from './pieces.ts';

/** The servers of telemetry: `Shards`. With one server there is no map. */
export interface ShipShards {
  readonly all: readonly InserterDeps['clickhouse'][];
  known(signal: AbortSignal): Promise<ShardMap | undefined>;
  begin(map: ShardMap): () => void;
  readonly versionInUse: number;
}

export interface InserterDeps {
  clickhouse: Pick<ClickHouse, 'insertBlocks' | 'endInserts' | 'ping'>;
  control: ControlRow;
  clock: Clock;
  log: Log;
  metrics: Metrics;
  timeoutMs: number;
  sleep: Sleep;
  signal: AbortSignal;
  /**
   * True: an insert that fails for a reason other than its rows is given up. False: such an insert is repeated until it
   * succeeds.
   */
  once: boolean;
  /** Pieces of one unit that are inserted at once. */
  parallelMax: number;
  /** A row more than this many milliseconds ahead of its arrival becomes no latest value; 0 = every row may. */
  latestAheadMsMax?: number;
  /** True: other inserts go first, because these rows are not of today. */
  patient: boolean;
  /** True: senders wait for inserts, so these rows may be joined with those of other workers. */
  callersWait?: boolean;
  /** As in `ShipperDeps`. */
  isRelayed?: boolean;
  /** Marks of inserts: how the marks of this process begin, and marks of earlier processes that may still run. */
  notes?: Pick<ShipNotes, 'mark' | 'earlierMarks' | 'forgetMarks'>;
}

export interface Progress {
  /** What is stored already. */
  stored?: StoredOf;
  /** The most days of one insert. */
  daysMax?: number;
  /** An order ≤ that of every payload; absent when no such order is known. */
  orderMin?: bigint;
  /** Called when every row with a time in the range is stored. */
  onStored?: (range: TimeRange) => void;
  /** Ends this insert; absent: only the signal of `InserterDeps` does. */
  signal?: AbortSignal;
}

export interface InsertOutcome {
  /** False: the signal was aborted, or `once` gave up; rows that are in no other list may or may not be stored. */
  complete: boolean;
  refused: RefusedPayload[];
  /** Payloads whose rows are all stored; meaningful for payloads of one row. */
  stored: Set<Uint8Array>;
  /** Payloads of which rows wait for their shard, durable beside the lane. */
  waiting: ReadonlySet<Uint8Array>;
  /** Returns whether the rows of a device in `waiting` wait. Absent: the rows of every device may wait. */
  waits?: WaitsForShard;
}

/** Returns whether rows of a device wait for a shard. */
export type WaitsForShard = (device: number) => boolean;

export const nothingWaits: ReadonlySet<Uint8Array> = new Set();

export interface RefusedPayload {
  payload: Uint8Array;
  rows: number;
  suspicion: Suspicion;
  reason: string;
}

/** Failures of the same rows after which these rows may be the cause. */
const crashesMax = 5;
const crashesOfCutMax = 2;
const unknownMax = 3;
const slowMax = 3;
/** The timeout doubles with each insert that takes longer, up to this multiple of the first timeout. */
const deadlineFactorMax = 8;
/** A store that refuses inserts for so long is a reason in `/readyz`; a short refusal follows from load. */
const refusedMsMin = 5_000;
/** Interval at which the store is asked again to end inserts that still run after their deadline. */
const leftInsertsMs = 250;
/** Bytes of the bodies that are inserted at once. */
const parallelBytesMax = 32 * 1024 * 1024;
/** Bytes of a body whose memory is used again: above `unitBytesMax`, because rows of joined blocks may gain columns. */
const keptBodyBytesMax = 32 * 1024 * 1024;

/** The bodies of the inserts into both tables: one buffer when both tables get the same rows. */
type Bodies = Record<'telemetry' | 'latest', Buffer>;

type Verdict = 'stored' | 'cut' | 'refused' | 'given up';

export class Inserter {
  readonly #deps: InserterDeps;
  readonly #backoff: Backoff;
  /** A mark of all inserts of this object, by which `endInserts` finds them. */
  readonly mark: string;
  /** Marks of earlier processes; emptied when none of their inserts runs any more. */
  #earlier: readonly string[];
  /** Marks of inserts of this process that were given up. */
  readonly #givenUp = new Set<string>();
  /** Ends waits and repetitions of the insert that runs. */
  #signal: AbortSignal;
  /** `Progress.signal`, which also ends a request. A stop waits for the answer to a request instead. */
  #abortSignal: AbortSignal | undefined;
  /** True when an insert may still run in the store because its answer was not received. */
  #mayRunOn = false;
  #deadlineFactor = 1;
  readonly #bodies = new BufferPool({ countMax: 2, bytesMax: keptBodyBytesMax });
  /** The fraction of a unit's size that is used after recent failures; 1 = the whole size. */
  #share = 1;
  /** The latest refusal since the last insert or control row that was accepted, and the time of the first one. */
  #refused: { since: number; reason: string } | undefined;

  constructor(deps: InserterDeps) {
    this.#deps = deps;
    this.#backoff = new Backoff(deps);
    this.mark = `${deps.notes?.mark ?? 'millrace'}-${randomUUID()}`;
    this.#earlier = [...(deps.notes?.earlierMarks ?? [])];
    this.#signal = deps.signal;
  }

  /**
   * Returns why the store, which answers, has refused inserts for a while; undefined when the store accepts inserts.
   */
  get refusal(): string | undefined {
    const refused = this.#refused;
    return refused && this.#deps.clock.monotonic() - refused.since >= refusedMsMin ? refused.reason : undefined;
  }

  /** True while the latest insert was refused or not answered. */
  isFailing = false;

  /** Ends the inserts with this mark before the next rows count as stored: they may still run, with these rows. */
  endFirst(mark: string): void {
    this.#givenUp.add(mark);
  }

  /** Returns the rows of the next unit, at most `most`: fewer after inserts that were too large or too slow. */
  rowsOf(most: number): number {
    return Math.max(1, Math.floor(most * this.#share));
  }

  /** Makes the next units smaller: an earlier process did not finish a unit of `rows` rows; `most` is the full size. */
  shrink(rows: number, most: number): void {
    this.#share = Math.min(1, Math.max(1e-6, rows / most / 2));
  }

  async insert(payloads: readonly Uint8Array[], progress: Progress = {}): Promise<InsertOutcome> {
    const outcome: InsertOutcome = { complete: true, refused: [], stored: new Set(), waiting: nothingWaits };
    const { signal } = this.#deps;
    this.isFailing = false;
    this.#abortSignal = progress.signal;
    this.#signal = progress.signal ? AbortSignal.any([signal, progress.signal]) : signal;
    const waiting = piecesOf(payloads, this.#deps.clock.now(), progress.stored, progress.daysMax);
    const bytes = payloads.reduce((sum, { length }) => sum + length, 0);
    const parallel = Math.min(
      waiting.length,
      this.#deps.parallelMax,
      Math.max(1, Math.floor(parallelBytesMax / (bytes + 1))),
    );
    let cut = false;
    const loop = async (): Promise<void> => {
      for (let piece = waiting.shift(); piece && outcome.complete; piece = waiting.shift()) {
        const { verdict, error } = await this.#insertPiece(piece, { cut, orderMin: progress.orderMin });
        if (verdict === 'stored') {
          for (const payload of piece.payloads) outcome.stored.add(payload);
          const { span } = piece;
          span.pieces -= 1;
          if (span.pieces === 0 && !span.refused) progress.onStored?.(span);
        } else if (verdict === 'cut') {
          cut = true;
          waiting.unshift(...halvesOf(piece)!);
        } else if (verdict === 'refused') {
          piece.span.refused = true;
          piece.span.pieces -= 1;
          outcome.refused.push(refusedOf(piece, error!));
        } else {
          outcome.complete = false;
        }
      }
    };
    await Promise.all(Array.from({ length: parallel }, loop));
    if (this.#mayRunOn && !(await this.#endLeftInserts())) outcome.complete = false;
    for (const mark of this.#givenUp) {
      if (await this.#endInserts(mark)) this.#givenUp.delete(mark);
      else outcome.complete = false;
    }
    if (this.#earlier.length > 0 && !(await this.#endEarlierInserts())) outcome.complete = false;
    return outcome;
  }

  /**
   * Ends inserts that still run in the store. Such an insert could restore rows in `latest` after they were stored by a
   * repetition and then deleted, so nothing counts as stored while it runs. Returns false when the signal was aborted.
   */
  async #endLeftInserts(): Promise<boolean> {
    const ended = await this.#endInserts(this.mark);
    if (ended) this.#mayRunOn = false;
    return ended;
  }

  /** Like `#endLeftInserts`, for the inserts of processes that were killed. */
  async #endEarlierInserts(): Promise<boolean> {
    const marks = this.#earlier;
    for (const mark of marks) if (!(await this.#endInserts(mark, { givesUp: true }))) return false;
    this.#earlier = [];
    this.#deps.notes?.forgetMarks(marks);
    return true;
  }

  /** `givesUp`: asks only once when the store refuses the question, for example for lack of rights. */
  async #endInserts(mark: string, { givesUp = false } = {}): Promise<boolean> {
    const { clickhouse, clock, log, sleep, timeoutMs } = this.#deps;
    const signal = this.#signal;
    // The store ends an insert at its timeout. An insert that still runs must not block the lane without limit.
    const deadline = clock.monotonic() + timeoutMs * deadlineFactorMax;
    while (!signal.aborted) {
      const ended = await clickhouse.endInserts(mark, { timeoutMs }).catch((error: unknown) => error);
      if (ended === true) return true;
      if (clock.monotonic() >= deadline || (givesUp && ended !== false && !isUnanswered(ended))) {
        const reason = ended === false ? 'the store does not end an insert' : messageOf(ended);
        log.warn('insert_runs_on', { reason });
        return true;
      }
      await sleep(leftInsertsMs, signal);
    }
    return false;
  }

  /** `cut`: the unit was divided before, so fewer crashes of the store suffice to suspect the rest. */
  async #insertPiece(
    piece: Piece,
    { cut, orderMin }: { cut: boolean; orderMin: bigint | undefined },
  ): Promise<{ verdict: Verdict; error?: ClickHouseError }> {
    const { control, once } = this.#deps;
    const signal = this.#signal;
    const whole = isIndivisible(piece);
    const bodies = this.#bodiesOf(piece, cut);
    for (let attempt = 0; ; attempt += 1) {
      if (signal.aborted) return { verdict: 'given up' };
      const error = await this.#send(piece, bodies, { attempt, cut, orderMin });
      if (!error) {
        // After a failure a socket may still have the bytes.
        if (attempt === 0 && !this.#mayRunOn) {
          for (const body of new Set(Object.values(bodies))) this.#bodies.give(body);
        }
        return { verdict: 'stored' };
      }
      control.forget();
      const suspicion = this.#count(piece, error, { cut });
      const slow = suspicion === 'size';
      if (slow && !whole) {
        this.#share = Math.max(this.#share / 2, 1e-6);
        await this.#backoff.wait(signal, { mayEndEarly: false });
        return { verdict: 'cut' };
      }
      if (suspicion === 'crash') await this.#backoff.untilAnswered(signal);
      if (suspicion && (await control.accepted())) {
        this.#backoff.succeeded();
        this.#refused = undefined;
        return { verdict: whole ? 'refused' : 'cut', error };
      }
      if (once && !error.connectionLost) return { verdict: 'given up' };
      // A store that crashes on these rows answers `/ping` as soon as it is up: that must not shorten the wait.
      await this.#backoff.wait(signal, { mayEndEarly: isNoAnswer(error) && piece.crashes < 2 });
    }
  }

  /**
   * Packs no rows after a cut, because records of one device and time may be in both parts of a frame. Packs no rows of
   * a range either, because `packRecords` takes all rows.
   */
  #bodiesOf(piece: Piece, cut: boolean): Bodies {
    const { payloads, areSingle } = piece;
    const take = (bytes: number) => this.#bodies.take(bytes);
    const telemetry = joinBlocks(payloads, take);
    const isPackable = areSingle && !cut && !isRanged(piece);
    return { telemetry, latest: (isPackable ? packRecords(payloads, take) : undefined) ?? telemetry };
  }

  /** Counts a failure. Returns the suspicion against the rows of the piece; undefined when there is none yet. */
  #count(piece: Piece, error: ClickHouseError, { cut }: { cut: boolean }): Suspicion | undefined {
    const { once } = this.#deps;
    const slow = error.kind === 'size' || error.timedOut;
    if (slow) piece.slow += 1;
    if (error.timedOut) this.#deadlineFactor = Math.min(deadlineFactorMax, this.#deadlineFactor * 2);
    if (error.connectionLost) piece.crashes += 1;
    if (error.kind === 'unknown') piece.unknown += 1;
    if (error.kind === 'content') return 'content';
    if (error.connectionLost && piece.crashes >= (cut || once ? crashesOfCutMax : crashesMax)) return 'crash';
    // Sends a control row at every third failure only, because the store is busy.
    if (error.kind === 'unknown' && (cut || once || piece.unknown % unknownMax === 0)) return 'unknown';
    if (slow && (once || !isIndivisible(piece) || piece.slow >= slowMax)) return 'size';
    return undefined;
  }

  /** Returns undefined when both tables have the piece, otherwise the first error. */
  async #send(
    piece: Piece,
    bodies: Bodies,
    { attempt, cut, orderMin }: { attempt: number; cut: boolean; orderMin: bigint | undefined },
  ): Promise<ClickHouseError | undefined> {
    const { clickhouse, timeoutMs, patient, once, callersWait = false, isRelayed = false } = this.#deps;
    const { latestAheadMsMax = 0 } = this.#deps;
    const aheadMsMax = mayBeAhead(piece, orderMin, latestAheadMsMax) ? latestAheadMsMax : 0;
    const ranged = isRanged(piece);
    const parameters = ranged ? { fromTs: piece.from, toTs: piece.to } : {};
    const settings = patient ? { priority: callersWait ? '2' : '1' } : {};
    // Rows that were refused before are sent alone, so that no refusal concerns rows of others.
    const joinable = (callersWait || isRelayed) && !once && attempt === 0 && !cut;
    const abortSignal = this.#abortSignal;
    const options = {
      ...{ timeoutMs: timeoutMs * this.#deadlineFactor, parameters, settings, mark: this.mark, joinable },
      ...(abortSignal && { abortSignal }),
    };
    const insert = async (table: 'telemetry' | 'latest'): Promise<ClickHouseError | undefined> => {
      if (piece[table]) return undefined;
      try {
        const { repeated } = await clickhouse.insertBlocks(
          statementOf(table, piece, aheadMsMax),
          bodies[table],
          options,
        );
        if (repeated) this.#mayRunOn = true;
        piece[table] = true;
        return undefined;
      } catch (error) {
        assert(error instanceof ClickHouseError, `insert failed in an unknown way: ${messageOf(error)}`);
        if (error.timedOut || error.connectionLost || abortSignal?.aborted) this.#mayRunOn = true;
        this.#logError(error);
        return error;
      }
    };
    // A store that refused gets one body at a time until it accepts one.
    const errors =
      attempt === 0
        ? await Promise.all([insert('telemetry'), insert('latest')])
        : [(await insert('telemetry')) ?? (await insert('latest'))];
    const error = worstOf(errors);
    this.isFailing = error !== undefined;
    if (error && !isUnanswered(error)) {
      // Other errors may quote values of a row, and `/readyz` needs no sign-in.
      const reason = error.transient ? error.message : `ClickHouse error ${error.code}, see storage_insert in the log`;
      this.#refused = { since: this.#refused?.since ?? this.#deps.clock.monotonic(), reason };
    }
    if (!error) {
      this.#backoff.succeeded();
      this.#takes();
      this.#deadlineFactor = 1;
      this.#share = Math.min(1, this.#share * 1.5);
    }
    return error;
  }

  /** Called after an insert: ClickHouse takes rows again. */
  #takes(): void {
    if (this.#refused === undefined) return;
    const { log, clock } = this.#deps;
    log.info('storage_insert_back', { awayMs: Math.round(clock.monotonic() - this.#refused.since) });
    this.#refused = undefined;
  }

  #logError(error: ClickHouseError): void {
    const { log, metrics } = this.#deps;
    const { code } = error;
    const kind = failureOf(error);
    const labels = { code: String(code), kind };
    metrics.counter('storage_insert_errors_total', 'Inserts that failed, by code of ClickHouse.', labels).add(1);
    metrics.counter('storage_retries_total', 'Inserts that had to be repeated.').add(1);
    // The client reports a store that does not answer.
    log[isUnanswered(error) ? 'debug' : 'warn']('storage_insert', { kind, code, reason: error.message.slice(0, 500) });
  }
}

/** Returns why a shard, which answers, has refused inserts for a while. `inserters`: that of each shard. */
export function refusalOfShards(inserters: readonly Inserter[]): string | undefined {
  for (const [shard, { refusal }] of inserters.entries())
    if (refusal !== undefined) return `shard ${shard}: ${refusal}`;
  return undefined;
}

function statementOf(table: 'telemetry' | 'latest', piece: Piece, aheadMsMax: number): string {
  const ranged = isRanged(piece);
  const { serverTimes, expires, areSingle } = piece;
  if (table === 'telemetry') return insertTelemetryOf({ serverTimes, ranged, expires });
  return insertLatestOf({ serverTimes, expires, ranged, aheadMsMax, areSingle });
}

/**
 * False only when no row is more than `aheadMsMax` ahead of its arrival, which is not before the milliseconds of
 * `orderMin`. The check of each row costs the store a copy of all rows.
 */
function mayBeAhead({ newest }: Piece, orderMin: bigint | undefined, aheadMsMax: number): boolean {
  return orderMin === undefined || newest > orderMs(orderMin) + aheadMsMax;
}

function refusedOf(piece: Piece, error: ClickHouseError): RefusedPayload {
  const reason = `${error.code} ${error.message.slice(0, 500)}`;
  return { payload: piece.payloads[0]!, rows: piece.rows, suspicion: suspicionOf(error), reason };
}
