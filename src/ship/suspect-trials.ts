/**
 * Inserts suspects again, in rounds. A row that is accepted was never bad. A row that is refused in enough rounds over
 * enough time, while a control row is accepted each time, is proven bad and moves to quarantine. `Trials` also counts
 * the entries of the quarantine and removes expired ones. Each journal has one.
 */
import { dayMs, hourMs, minuteMs } from '../base/durations.ts';
import { messageOf } from '../base/errors.ts';
import type { Counter } from '../base/metrics/metrics.ts';
import type { Sleep } from '../base/scheduler.ts';
import { QuarantineFull } from '../journal/quarantine.ts';
import type { GivesUnits } from '../journal/seam.ts';
import type { Suspect } from '../journal/suspects.ts';
import type { ControlRow } from './control-row.ts';
import type { InserterDeps, RefusedPayload, ShipShards } from './insert.ts';
import type { Suspicion } from './insert-errors.ts';
import { type ExpirySettings, QuarantineExpiry } from './quarantine-expiry.ts';
import { type Inserts, inserterOf } from './shard-inserter.ts';

interface TrialsDeps
  extends ExpirySettings,
    Omit<InserterDeps, 'clickhouse' | 'control' | 'once' | 'parallelMax' | 'patient' | 'signal' | 'sleep'> {
  shards: ShipShards;
  /** The control row of each shard. */
  controls: readonly ControlRow[];
  journal: GivesUnits;
  sleep: Sleep;
  /** Called after suspects were stored or proven bad. */
  onSettled: () => void;
}

/** The rounds and the time that prove a row bad, by the suspicion. The clock is monotonic, of this process. */
const proofs: Record<Suspicion, { rounds: number; ms: number }> = {
  content: { rounds: 3, ms: 5 * minuteMs },
  crash: { rounds: 3, ms: 5 * minuteMs },
  unknown: { rounds: 12, ms: hourMs },
  size: { rounds: 50, ms: dayMs },
};
const roundMsFirst = 10_000;
const roundMsMax = 600_000;
/** Suspects of one round. */
const suspectsMax = 1_000;
const roundBytesMax = 8 * 1024 * 1024;
/** Inserts of one round at once. */
const parallelMax = 4;
const idleMs = 60_000;
/** Interval at which the directory of a quarantine with entries is read: an operator may remove entries. */
const quarantineMs = 5_000;

interface Trial {
  since: number;
  rounds: number;
  next: number;
  /** Counted apart by suspicion: a kill of the store proves nothing about a row that lacked memory for hours. */
  refusals: Map<Suspicion, { since: number; rounds: number }>;
}

export class Trials {
  readonly #deps: TrialsDeps;
  readonly #stopping = new AbortController();
  readonly #inserter: Inserts;
  readonly #trials = new Map<Suspect, Trial>();
  readonly #quarantined: Counter;
  readonly #expiry: QuarantineExpiry;
  #waking = new AbortController();
  #running: Promise<void> = Promise.resolve();

  constructor(deps: TrialsDeps) {
    this.#deps = deps;
    const { shards, controls } = deps;
    const settings = { ...deps, signal: this.#stopping.signal, once: true, parallelMax, patient: true };
    this.#inserter = inserterOf({ shards, controls }, settings);
    const { metrics, journal } = deps;
    const { suspects, quarantine } = journal;
    this.#quarantined = metrics.counter('ingest_quarantined_rows_total', 'Rows that were proven bad.');
    this.#expiry = new QuarantineExpiry({ ...deps, quarantine });
    metrics.observed(
      'ingest_suspect_rows',
      'Rows that ClickHouse refused and that are tried again.',
      () => suspects.rows,
    );
    metrics.observed(
      'ingest_suspect_bytes',
      'Bytes of rows that ClickHouse refused and that are tried again.',
      () => suspects.bytes,
    );
    metrics.observed('quarantine_entries', 'Entries in quarantine.', () => quarantine.entries);
    metrics.observed('quarantine_bytes', 'Bytes in quarantine.', () => quarantine.bytes);
  }

  start(): void {
    this.#running = this.#run();
  }

  /** Called when there are new suspects. */
  wake(): void {
    this.#waking.abort();
  }

  async stop(): Promise<void> {
    this.#stopping.abort();
    this.wake();
    await this.#running;
  }

  async #run(): Promise<void> {
    const { clock, sleep } = this.#deps;
    while (!this.#stopping.signal.aborted) {
      this.#waking = new AbortController();
      await this.#expiry.sweep();
      const due = this.#due();
      if (due.length > 0) await this.#round(due);
      const restMs = this.#deps.journal.quarantine.entries > 0 ? quarantineMs : idleMs;
      const next = Math.min(...[...this.#trials.values()].map((trial) => trial.next), clock.monotonic() + restMs);
      if (this.#stopping.signal.aborted) return;
      await sleep(Math.max(1, next - clock.monotonic()), this.#waking.signal);
    }
  }

  /** Returns the suspects that are due, and sets the first time of new ones. */
  #due(): Suspect[] {
    const { clock, journal } = this.#deps;
    const now = clock.monotonic();
    const due: Suspect[] = [];
    let bytes = 0;
    for (const suspect of journal.suspects.list()) {
      const trial = this.#trials.get(suspect);
      if (!trial) {
        this.#trials.set(suspect, { since: now, rounds: 0, next: now + roundMsFirst, refusals: new Map() });
      } else if (trial.next <= now && due.length < suspectsMax && bytes < roundBytesMax) {
        due.push(suspect);
        bytes += suspect.bytes;
      }
    }
    return due;
  }

  async #round(all: Suspect[]): Promise<void> {
    const { journal, log, onSettled } = this.#deps;
    let due = all;
    try {
      const found = await journal.suspects.read(all);
      const damaged = all.filter((_, i) => found[i] === undefined);
      if (damaged.length > 0) {
        log.error('suspects_damaged', { rows: damaged.length, file: damaged[0]!.file });
        for (const suspect of damaged) this.#trials.get(suspect)!.next = this.#deps.clock.monotonic() + roundMsMax;
      }
      due = all.filter((_, i) => found[i] !== undefined);
      const payloads = found.filter((payload) => payload !== undefined);
      const { stored, refused } = await this.#inserter.insert(payloads);
      const refusals = new Map(refused.map((refusal) => [refusal.payload, refusal]));
      const good = due.filter((_, i) => stored.has(payloads[i]!));
      const bad = due.filter((suspect, i) => this.#isProven(suspect, refusals.get(payloads[i]!)));
      if (good.length > 0) await this.#settle(good);
      if (bad.length > 0) await this.#quarantine(bad, due, payloads, refusals);
      if (good.length + bad.length > 0) onSettled();
    } catch (error) {
      // The disk is full or broken, or the quarantine is full: the suspects stay where they are.
      const event = error instanceof QuarantineFull ? 'quarantine_full' : 'suspects_failed';
      log.error(event, { reason: messageOf(error) });
      this.#later(due);
    }
  }

  /** Counts the round. A suspect that was not refused (because the store failed, for example) waits as well. */
  #isProven(suspect: Suspect, refusal: RefusedPayload | undefined): boolean {
    const now = this.#deps.clock.monotonic();
    const trial = this.#trials.get(suspect)!;
    if (refusal) trial.rounds += 1;
    trial.next = now + Math.min(roundMsMax, roundMsFirst * 2 ** Math.min(trial.rounds, 10));
    if (!refusal) return false;
    const { refusals } = trial;
    const since = refusals.size === 0 ? trial.since : now;
    const own = refusals.get(refusal.suspicion) ?? { since, rounds: 0 };
    refusals.set(refusal.suspicion, own);
    own.rounds += 1;
    const proof = proofs[refusal.suspicion];
    return own.rounds >= proof.rounds && now - own.since >= proof.ms;
  }

  async #quarantine(
    bad: Suspect[],
    due: Suspect[],
    payloads: Buffer[],
    refusals: Map<Uint8Array, RefusedPayload>,
  ): Promise<void> {
    const { journal, log } = this.#deps;
    const items = bad.map((suspect) => {
      const payload = payloads[due.indexOf(suspect)]!;
      const { reason } = refusals.get(payload)!;
      return { reason, payload, rows: suspect.rows, order: suspect.order };
    });
    await journal.quarantine.add(items);
    await this.#settle(bad);
    const rows = bad.reduce((sum, suspect) => sum + suspect.rows, 0);
    this.#quarantined.add(rows);
    log.error('rows_quarantined', { rows, reason: items[0]!.reason });
  }

  async #settle(suspects: Suspect[]): Promise<void> {
    await this.#deps.journal.suspects.settle(suspects);
    for (const suspect of suspects) this.#trials.delete(suspect);
  }

  /** Suspects that were settled before the failure have no trial any more. */
  #later(due: Suspect[]): void {
    const next = this.#deps.clock.monotonic() + roundMsFirst;
    for (const suspect of due) {
      const trial = this.#trials.get(suspect);
      if (trial) trial.next = next;
    }
  }
}
