/**
 * Measures the database's clock for the primary: one round trip with each poll of the stores. Keeps the last
 * measurement in DATA_DIR/clock.json, so that a start without the database uses the same time, and exports
 * `clock_offset_seconds`.
 */
import { readFileSync, renameSync, writeFileSync } from 'node:fs';
import { type FollowedClock, hostMonotonic, reachedAt, type TimeLine } from '../../base/clock.ts';
import { messageOf } from '../../base/errors.ts';
import type { Log } from '../../base/log.ts';
import type { Metrics } from '../../base/metrics/metrics.ts';
import { bootId } from '../../base/process-file.ts';
import type { Queries } from '../../postgres/client.ts';
import { databaseMs } from '../../postgres/clock.ts';
import {
  ClockOffset,
  type ClockState,
  type ClockVerdict,
  clockSentence,
  type RememberedClock,
} from './clock-offset.ts';

interface ClockWatchDeps {
  postgres: Queries;
  clock: FollowedClock;
  /** Path of the last measurement. */
  path: string;
  log: Log;
  metrics: Metrics;
}

const questionMsMax = 2_000;
/** Round trips before the workers start, of which the shortest one decides. */
const firstQuestions = 8;
/** A new line begins this much later, when every process has received the line: all processes change at one moment. */
const lineAheadMs = 1_000;
const keepEveryMs = 60_000;
const keepAtChangeMs = 250;

/** The content of the file. */
interface KeptClock extends RememberedClock {
  /** The boot in which `anchor` is valid; earlier versions wrote neither. */
  boot?: string;
}

export class ClockWatch {
  readonly #deps: ClockWatchDeps;
  readonly #offset = new ClockOffset();
  #line: TimeLine | undefined;
  #kept: { offsetMs: number; at: number } | undefined;
  #logged: ClockVerdict = 'unmeasured';
  #wasDatabaseStep = false;
  readonly #boot = bootId();
  /** The error of the last failed measurement. */
  failure: unknown;

  constructor(deps: ClockWatchDeps) {
    this.#deps = deps;
    const seconds = () => this.#offset.state.offsetMs / 1000;
    const help = "This host's clock minus the database's, in seconds.";
    deps.metrics.observed('clock_offset_seconds', help, seconds, 'max');
  }

  get state(): ClockState {
    return { ...this.#offset.state, line: this.#line };
  }

  /** Called before any other use of the time. The database may be unavailable. */
  async begin(): Promise<void> {
    this.#offset.begin(Date.now(), hostMonotonic(), this.#remembered());
    for (let n = 0; n < firstQuestions && (await this.measure()); n += 1);
    const anchor = this.#offset.anchor!;
    this.#line = { anchor, since: 0, earlierAnchor: anchor };
    this.#deps.clock.follow(this.#line);
  }

  /** True when the database answered. */
  async measure(): Promise<boolean> {
    const asked = hostMonotonic();
    let database: number;
    try {
      database = await databaseMs(this.#deps.postgres, questionMsMax);
    } catch (error) {
      this.failure = error;
      return false;
    }
    const answered = hostMonotonic();
    const error = (answered - asked) / 2;
    this.#offset.measured({ database, host: Date.now() - error, monotonic: asked + error, error });
    this.#change(answered);
    this.#logChange();
    this.#keep(database, answered);
    return true;
  }

  #change(monotonic: number): void {
    const anchor = this.#offset.anchor!;
    const line = this.#line;
    // Nothing is published before `begin` has ended. A line is kept until every process shows its time.
    if (line === undefined || line.anchor === anchor || monotonic < reachedAt(line)) return;
    this.#line = { anchor, since: monotonic + lineAheadMs, earlierAnchor: line.anchor };
    this.#deps.clock.follow(this.#line);
  }

  #logChange(): void {
    const { log } = this.#deps;
    const { state, isDatabaseStep } = this.#offset;
    if (isDatabaseStep && !this.#wasDatabaseStep) {
      log.error('database_clock_jumped', { reason: 'The clock of the database jumped; this host keeps its own time.' });
    }
    this.#wasDatabaseStep = isDatabaseStep;
    if (state.verdict === this.#logged) return;
    const reason = clockSentence(state);
    if (reason !== undefined) log[state.verdict === 'wrong' ? 'error' : 'warn']('clock_offset', { reason });
    else if (this.#logged !== 'unmeasured') log.info('clock_offset', { reason: 'The clocks agree again.' });
    this.#logged = state.verdict;
  }

  #remembered(): RememberedClock | undefined {
    try {
      const { databaseMs, offsetMs, boot, anchor } = JSON.parse(readFileSync(this.#deps.path, 'utf8')) as KeptClock;
      if (!Number.isFinite(databaseMs) || !Number.isFinite(offsetMs)) return undefined;
      const isSameBoot = boot !== undefined && boot !== '' && boot === this.#boot && Number.isFinite(anchor);
      return { databaseMs, offsetMs, anchor: isSameBoot ? anchor : undefined };
    } catch {
      // The first start, or a file that a power cut left empty: only the host's clock is known.
      return undefined;
    }
  }

  /**
   * Writes without a sync: after a power cut an older measurement suffices. A time that this instance does not follow
   * is not kept.
   */
  #keep(databaseMs: number, at: number): void {
    const { path, log } = this.#deps;
    const { offsetMs } = this.#offset.state;
    const kept = this.#kept;
    if (this.#offset.isDatabaseStep) return;
    if (kept && at - kept.at < keepEveryMs && Math.abs(kept.offsetMs - offsetMs) < keepAtChangeMs) return;
    this.#kept = { offsetMs, at };
    try {
      const { anchor } = this.#offset;
      const content: KeptClock = { databaseMs: Math.floor(databaseMs), offsetMs, boot: this.#boot, anchor };
      writeFileSync(`${path}.new`, JSON.stringify(content), { mode: 0o600 });
      renameSync(`${path}.new`, path);
    } catch (error) {
      // A full disk must not end the primary; the next round tries again.
      this.#kept = undefined;
      log.warn('clock_unkept', { reason: messageOf(error) });
    }
  }
}
