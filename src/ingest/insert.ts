/**
 * Inserts the frames of a unit into both tables until every row is stored or refused for itself. Called by `lane.ts`,
 * `wide.ts` and `trials.ts`. An error is the store's until the opposite is shown: rows are cut apart, and a lone row
 * is refused, only while a control row is accepted. What takes too long or too much memory comes again in halves.
 */
import { randomUUID } from 'node:crypto';
import type { Clock } from '../base/clock.ts';
import { assert, messageOf } from '../base/errors.ts';
import type { Log } from '../base/log.ts';
import type { Metrics } from '../base/metrics.ts';
import { type ClickHouse, ClickHouseError } from '../clickhouse/client.ts';
import {
  insertLatest,
  insertLatestOfGivenTimes,
  insertLatestOfGivenTimesRange,
  insertLatestRange,
  insertTelemetry,
  insertTelemetryRange,
} from '../clickhouse/statements.ts';
import { Backoff, isNoAnswer, type Sleep } from './backoff.ts';
import type { Control } from './control.ts';
import { halvesOf, isRanged, isWhole, type Piece, piecesOf } from './pieces.ts';

/** What the failures of a lone row were about; `size` and `unknown` take longer to prove. */
export type Suspicion = 'content' | 'crash' | 'unknown' | 'size';

export interface InserterDeps {
  clickhouse: ClickHouse;
  control: Control;
  clock: Clock;
  log: Log;
  metrics: Metrics;
  timeoutMs: number;
  sleep: Sleep;
  signal: AbortSignal;
  /**
   * True: an insert that fails for another reason than its rows is given up. False: it is repeated until it succeeds.
   */
  once: boolean;
  /** Pieces of one unit that are inserted at once. */
  parallelMax: number;
}

export interface Outcome {
  /** False: the signal was aborted, or `once` gave up; rows that are in no other list may be stored or not. */
  complete: boolean;
  refused: RefusedPayload[];
  /** Payloads all of whose rows are stored; meant for payloads of one row. */
  stored: Set<Uint8Array>;
}

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
/** The deadline doubles with each insert that missed it, up to this many times its length. */
const deadlineFactorMax = 8;
/** Interval at which inserts that still run after their deadline are checked. */
const leftInsertsMs = 250;
/** Bytes of the bodies that are inserted at once. */
const parallelBytesMax = 32 * 1024 * 1024;

type Verdict = 'stored' | 'cut' | 'refused' | 'given up';

export class Inserter {
  readonly #deps: InserterDeps;
  readonly #backoff: Backoff;
  /** Marks all inserts of this object, so that `endInserts` finds them. */
  readonly #mark = `millrace-${randomUUID()}`;
  /** An insert of which the answer was not received may run on. */
  #mayRunOn = false;
  #deadlineFactor = 1;
  /** What the last failures leave of the size of a unit: 1 = all of it. */
  #share = 1;

  constructor(deps: InserterDeps) {
    this.#deps = deps;
    this.#backoff = new Backoff(deps);
  }

  /** Rows of the next unit, of at most `most`: fewer after inserts that were too large or too slow. */
  rowsOf(most: number): number {
    return Math.max(1, Math.floor(most * this.#share));
  }

  async insert(payloads: readonly Uint8Array[]): Promise<Outcome> {
    const outcome: Outcome = { complete: true, refused: [], stored: new Set() };
    const waiting = piecesOf(payloads, this.#deps.clock.now());
    const bytes = payloads.reduce((sum, { length }) => sum + length, 0);
    const parallel = Math.min(
      waiting.length,
      this.#deps.parallelMax,
      Math.max(1, Math.floor(parallelBytesMax / (bytes + 1))),
    );
    let cut = false;
    const loop = async (): Promise<void> => {
      for (let piece = waiting.shift(); piece && outcome.complete; piece = waiting.shift()) {
        const { verdict, error } = await this.#insertPiece(piece, cut);
        if (verdict === 'stored') {
          for (const payload of piece.payloads) outcome.stored.add(payload);
        } else if (verdict === 'cut') {
          cut = true;
          waiting.unshift(...halvesOf(piece)!);
        } else if (verdict === 'refused') {
          outcome.refused.push(refusedOf(piece, error!));
        } else {
          outcome.complete = false;
        }
      }
    };
    await Promise.all(Array.from({ length: parallel }, loop));
    if (this.#mayRunOn && !(await this.#endLeftInserts())) outcome.complete = false;
    return outcome;
  }

  /**
   * An insert that ran on after its rows were stored by a repetition, and after a delete of them, would bring them back
   * in `latest`. So nothing counts as stored while such an insert runs. False: the signal was aborted.
   */
  async #endLeftInserts(): Promise<boolean> {
    const { clickhouse, clock, log, signal, sleep, timeoutMs } = this.#deps;
    // The store itself ends an insert at its deadline. One that does not end even so must not hold up the lane for
    // ever.
    const deadline = clock.monotonic() + timeoutMs * deadlineFactorMax;
    while (!signal.aborted) {
      const ended = await clickhouse.endInserts(this.#mark, { timeoutMs }).catch((error: unknown) => messageOf(error));
      if (ended === true) {
        this.#mayRunOn = false;
        return true;
      }
      if (clock.monotonic() >= deadline) {
        log.warn('insert_runs_on', { reason: ended === false ? 'the store does not end an insert' : ended });
        this.#mayRunOn = false;
        return true;
      }
      await sleep(leftInsertsMs, signal);
    }
    return false;
  }

  /** `cut`: the unit has been cut before, so fewer crashes of the store count against what is left. */
  async #insertPiece(piece: Piece, cut: boolean): Promise<{ verdict: Verdict; error?: ClickHouseError }> {
    const { signal, control, once } = this.#deps;
    const whole = isWhole(piece);
    const body = Buffer.concat(piece.payloads);
    for (let attempt = 0; ; attempt += 1) {
      if (signal.aborted) return { verdict: 'given up' };
      const error = await this.#send(piece, body, attempt);
      if (!error) return { verdict: 'stored' };
      control.forget();
      const suspicion = this.#count(piece, error, cut);
      const slow = suspicion === 'size';
      if (slow && !whole) {
        this.#share = Math.max(this.#share / 2, 1e-6);
        await this.#backoff.wait(false);
        return { verdict: 'cut' };
      }
      if (suspicion === 'crash') await this.#backoff.untilAnswered();
      if (suspicion && (await control.accepted())) {
        this.#backoff.succeeded();
        return { verdict: whole ? 'refused' : 'cut', error };
      }
      if (once && !error.connectionLost) return { verdict: 'given up' };
      // A store that dies of these rows answers `/ping` as soon as it is back: that must not shorten the wait.
      await this.#backoff.wait(isNoAnswer(error) && piece.crashes < 2);
    }
  }

  /** What the failures of the piece so far may say about its rows; undefined: nothing. */
  #count(piece: Piece, error: ClickHouseError, cut: boolean): Suspicion | undefined {
    const { once } = this.#deps;
    const slow = error.kind === 'size' || error.timedOut;
    if (slow) piece.slow += 1;
    if (error.timedOut) this.#deadlineFactor = Math.min(deadlineFactorMax, this.#deadlineFactor * 2);
    if (error.connectionLost) piece.crashes += 1;
    if (error.kind === 'unknown') piece.unknown += 1;
    if (error.kind === 'content') return 'content';
    if (error.connectionLost && piece.crashes >= (cut || once ? crashesOfCutMax : crashesMax)) return 'crash';
    // The store is asked for a control row at every third failure only: it has enough to do.
    if (error.kind === 'unknown' && (cut || once || piece.unknown % unknownMax === 0)) return 'unknown';
    if (slow && (once || !isWhole(piece) || piece.slow >= slowMax)) return 'size';
    return undefined;
  }

  /** Undefined when both tables have the piece; else the first error. */
  async #send(piece: Piece, body: Buffer, attempt: number): Promise<ClickHouseError | undefined> {
    const { clickhouse, timeoutMs } = this.#deps;
    const ranged = isRanged(piece);
    const parameters = ranged ? { fromTs: piece.from, toTs: piece.to } : {};
    const options = { timeoutMs: timeoutMs * this.#deadlineFactor, parameters, mark: this.#mark };
    const insert = async (table: 'telemetry' | 'latest'): Promise<ClickHouseError | undefined> => {
      if (piece[table]) return undefined;
      try {
        const { repeated } = await clickhouse.insertBlocks(statementOf(table, piece), body, options);
        if (repeated) this.#mayRunOn = true;
        piece[table] = true;
        return undefined;
      } catch (error) {
        assert(error instanceof ClickHouseError, `insert failed in an unknown way: ${messageOf(error)}`);
        if (error.timedOut || error.connectionLost) this.#mayRunOn = true;
        this.#tell(error);
        return error;
      }
    };
    // A store that refused gets one body at a time until it accepts.
    const errors =
      attempt === 0
        ? await Promise.all([insert('telemetry'), insert('latest')])
        : [(await insert('telemetry')) ?? (await insert('latest'))];
    const error = worstOf(errors);
    if (!error) {
      this.#backoff.succeeded();
      this.#deadlineFactor = 1;
      this.#share = Math.min(1, this.#share * 1.5);
    }
    return error;
  }

  #tell(error: ClickHouseError): void {
    const { log, metrics } = this.#deps;
    const { code } = error;
    const kind = error.timedOut
      ? 'timeout'
      : error.connectionLost
        ? 'connection_lost'
        : code === 0
          ? 'no_answer'
          : error.kind;
    const labels = { code: String(code), kind };
    metrics.counter('storage_insert_errors_total', 'Inserts that failed, by code of ClickHouse.', labels).add(1);
    metrics.counter('storage_retries_total', 'Inserts that had to be repeated.').add(1);
    log.warn('storage_insert', { kind, code, reason: error.message.slice(0, 500) });
  }
}

function statementOf(table: 'telemetry' | 'latest', piece: Piece): string {
  const ranged = isRanged(piece);
  if (table === 'telemetry') return ranged ? insertTelemetryRange : insertTelemetry;
  if (piece.serverTimes) return ranged ? insertLatestRange : insertLatest;
  return ranged ? insertLatestOfGivenTimesRange : insertLatestOfGivenTimes;
}

/** Returns the one of two errors that says more about the rows. */
function worstOf(errors: readonly (ClickHouseError | undefined)[]): ClickHouseError | undefined {
  const weight = (error: ClickHouseError) =>
    error.connectionLost ? 4 : error.kind === 'content' ? 3 : error.kind === 'size' || error.timedOut ? 2 : 1;
  return errors.filter((error) => error !== undefined).sort((a, b) => weight(b) - weight(a))[0];
}

function refusedOf(piece: Piece, error: ClickHouseError): RefusedPayload {
  const suspicion: Suspicion =
    error.kind === 'content'
      ? 'content'
      : error.connectionLost
        ? 'crash'
        : error.kind === 'unknown'
          ? 'unknown'
          : 'size';
  const reason = `${error.code} ${error.message.slice(0, 500)}`;
  return { payload: piece.payloads[0]!, rows: piece.rows, suspicion, reason };
}
