/**
 * Journals of worker slots that are not started any more (WORKERS was lowered). Worker 0 of an instance ships these
 * journals one after the other, never appends to them, and removes a journal when ClickHouse has all of its rows. Rows
 * that ClickHouse refuses are tried again for hours, while later journals are shipped. A journal that cannot be opened
 * is tried again; until then all of its orders count as not shipped.
 */
import { randomInt } from 'node:crypto';
import { basename } from 'node:path';
import { messageOf } from '../../base/errors.ts';
import { Metrics } from '../../base/metrics/metrics.ts';
import { systemScheduler } from '../../base/scheduler.ts';
import { goneReport, reportOf } from '../../ingest/journal-report.ts';
import type { StoredJournal } from '../../ingest/journal-store.ts';
import type { RefusedRowsOfJournal } from '../../ingest/refused-points.ts';
import { readWriterId } from '../../journal/identity.ts';
import type { Journal, JournalCut } from '../../journal/journal.ts';
import { openJournal } from '../../journal/open-journal.ts';
import type { Quarantine } from '../../journal/quarantine.ts';
import { QuarantineExpiry } from '../../ship/quarantine-expiry.ts';
import { Shipper } from '../../ship/ship.ts';
import type { ShipperDeps } from '../../ship/ship-deps.ts';
import type { JournalReportsOfHost } from './journal-reports.ts';

export type OrphanJournalsDeps = Omit<ShipperDeps, 'journal' | 'onShipped'> & {
  dirs: string[];
  segmentBytes: number;
  /** As in `OpenJournalDeps`. */
  installation?: string | undefined;
  /**
   * Called when all of a journal is stored. The journal is removed when the promise resolves. After a rejection the
   * journal stays until a later call resolves. Deletes depend on the call: see `forgetJournal` of
   * ingest/journal-store.ts.
   */
  onStored: (journal: StoredJournal) => Promise<void>;
};

const retryMs = 30_000;
/** A directory without a writer and without frames. */
const noWriter = -1;
const nothingExpires = async () => undefined;

export class OrphanJournals {
  readonly #deps: OrphanJournalsDeps;
  /** Directories that still have frames; the value is undefined for a journal that could not be opened. */
  readonly #waiting = new Map<string, Journal | undefined>();
  /** Writer ids of the directories that were opened; of removed ones also the lowest order that was found in them. */
  readonly #writers = new Map<string, number>();
  readonly #gone = new Map<number, string | null>();
  readonly #quarantines = new Map<string, Quarantine>();
  readonly #expiries = new Map<string, QuarantineExpiry>();
  readonly #stopping = new AbortController();
  /** Shippers by directory: one for the journal that is shipped now, others for journals with suspects only. */
  readonly #shippers = new Map<string, Shipper>();
  #running: Promise<void> = Promise.resolve();
  /** Journals that a backup holds; no journal is opened while this is set. */
  #held: Journal[] | undefined;

  constructor(deps: OrphanJournalsDeps) {
    this.#deps = deps;
    for (const dir of deps.dirs) this.#waiting.set(dir, undefined);
    const { metrics } = deps;
    metrics.observed('orphan_journals', 'Journals of workers that are not started any more.', () => this.count);
    metrics.observed('orphan_journal_bytes', 'Bytes of orphan journals that wait for ClickHouse.', () => this.bytes);
    metrics.observed(
      'orphan_suspect_rows',
      'Rows of orphan journals that ClickHouse refused and that are tried again.',
      () => this.suspectRows,
    );
    metrics.observed(
      'orphan_quarantine_entries',
      'Entries in quarantine of orphan journals, of removed ones too.',
      () => this.quarantineEntries,
    );
  }

  /** Opens every journal, so that its orders are known; then ships them in the background. */
  async start(): Promise<void> {
    for (const dir of this.#waiting.keys()) await this.#open(dir);
    this.#running = this.#run();
  }

  /** The number of journals that are not empty, or could not be opened. */
  get count(): number {
    return this.#waiting.size;
  }

  get bytes(): number {
    let bytes = 0;
    for (const journal of this.#waiting.values()) bytes += journal?.backlogBytes ?? 0;
    return bytes;
  }

  get suspectRows(): number {
    let rows = 0;
    for (const journal of this.#waiting.values()) rows += journal?.suspects.rows ?? 0;
    return rows;
  }

  /** Entries in quarantine outlive their journal. */
  get quarantineEntries(): number {
    let entries = 0;
    for (const quarantine of this.#quarantines.values()) entries += quarantine.entries;
    return entries;
  }

  /**
   * Deletes wait for orphan journals as for every other journal; `isWhole` is false while one of them cannot be opened.
   */
  reports(): JournalReportsOfHost {
    const reports = [...this.#gone].map(([writer, orderRecovered]) => goneReport(writer, orderRecovered));
    let isWhole = true;
    for (const [dir, journal] of this.#waiting) {
      const writer = this.#writers.get(dir);
      if (!journal || writer === undefined) isWhole = false;
      else if (writer !== noWriter)
        reports.push(reportOf(journal, writer, this.#deps.clock, this.#deps.shards.versionInUse));
    }
    return { reports, isWhole };
  }

  /** Rows that ClickHouse refused; those in quarantine outlive their journal. */
  refusedRows(): RefusedRowsOfJournal[] {
    return [...this.#quarantines].map(([dir, quarantine]) => {
      const journal = this.#waiting.get(dir);
      return { writer: this.#writers.get(dir), suspects: journal?.suspects, quarantine };
    });
  }

  /** Like `Shipper.flush`, for the journal that is being shipped. */
  flush(): void {
    for (const shipper of this.#shippers.values()) shipper.flush();
  }

  /**
   * Like `Journal.hold`, for each open journal. A backup copies the other journals unchanged: no code touches these
   * until the release.
   */
  hold(): JournalCut[] {
    this.#held = [...this.#waiting.values()].filter((journal) => journal !== undefined);
    return this.#held.map((journal) => journal.hold());
  }

  endHold(): boolean {
    const held = this.#held ?? [];
    this.#held = undefined;
    return held.map((journal) => journal.endHold()).every((intact) => intact);
  }

  /** Ships until nothing waits or the time is up; then stops. */
  async drain(timeMsMax: number): Promise<void> {
    const { clock } = this.#deps;
    const deadline = clock.monotonic() + timeMsMax;
    while (this.#shippers.size > 0 && clock.monotonic() < deadline) {
      await Promise.all([...this.#shippers.values()].map((shipper) => shipper.drain(deadline - clock.monotonic())));
      // The remaining rows are suspects: their trials take minutes, and the rows are durable.
      if ([...this.#waiting.values()].every((journal) => journal?.backlogBytes === 0)) break;
      await systemScheduler.sleep(10);
    }
    this.#stopping.abort();
    await this.#running;
    await Promise.all([...this.#shippers.values()].map((shipper) => shipper.stop()));
    for (const journal of this.#waiting.values()) await journal?.close();
  }

  async #run(): Promise<void> {
    const { signal } = this.#stopping;
    while ((this.#waiting.size > 0 || this.quarantineEntries > 0) && !signal.aborted) {
      for (const dir of [...this.#waiting.keys()]) {
        const journal = this.#waiting.get(dir) ?? (await this.#open(dir));
        if (journal && !signal.aborted) await this.#ship(dir, journal);
      }
      await this.#sweepQuarantines();
      await systemScheduler.sleep(retryMs, signal);
    }
  }

  /** The shipper of a journal sweeps its quarantine itself. */
  async #sweepQuarantines(): Promise<void> {
    for (const [dir, expiry] of this.#expiries) if (!this.#shippers.has(dir)) await expiry.sweep();
  }

  async #open(dir: string): Promise<Journal | undefined> {
    const { clock, log, metrics, quarantineKeptDays = 0, expiryTime = nothingExpires } = this.#deps;
    const { segmentBytes, installation } = this.#deps;
    if (this.#held) return undefined;
    try {
      const writer = await readWriterId(dir);
      const journal = await openJournal({ dir, log, clock, segmentBytes, installation, adopt: true, locked: true });
      // A restored directory has frames and no id (backup/journals.ts). Reports need an id that no other journal has.
      const withoutId = journal.empty ? noWriter : -2 - randomInt(2 ** 30);
      this.#writers.set(dir, writer ?? withoutId);
      this.#waiting.set(dir, journal);
      const { quarantine } = journal;
      this.#quarantines.set(dir, quarantine);
      const settings = { quarantineKeptDays, expiryTime };
      this.#expiries.set(dir, new QuarantineExpiry({ ...settings, quarantine, clock, log, metrics }));
      const held = this.#held as Journal[] | undefined;
      if (held) {
        journal.hold();
        held.push(journal);
      }
      return journal;
    } catch (error) {
      log.error('orphan_journal_not_shipped', { journal: basename(dir), reason: messageOf(error) });
      return undefined;
    }
  }

  /**
   * Returns when no frame waits, or when `drain` ends the loop. The journal is removed when no suspect waits either.
   */
  async #ship(dir: string, journal: Journal): Promise<void> {
    const { log } = this.#deps;
    if (!journal.empty && !this.#shippers.has(dir)) await this.#shipFrames(dir, journal);
    if (!journal.empty) return;
    await this.#shippers.get(dir)?.stop();
    this.#shippers.delete(dir);
    const writer = this.#writers.get(dir) ?? noWriter;
    const orderRecovered = journal.orderRecovered?.toString() ?? null;
    const stored = { writer, orderRecovered, orderHigh: journal.orderMax.toString() };
    try {
      if (writer !== noWriter) await this.#deps.onStored(stored);
      await journal.discard();
      this.#waiting.delete(dir);
      if (writer !== noWriter) this.#gone.set(writer, orderRecovered);
      log.info('orphan_journal_shipped', { journal: basename(dir) });
    } catch (error) {
      log.error('orphan_journal_not_shipped', { journal: basename(dir), reason: messageOf(error) });
    }
  }

  #shipFrames(dir: string, journal: Journal): Promise<void> {
    return new Promise((resolve) => {
      this.#stopping.signal.addEventListener('abort', () => resolve(), { once: true });
      const onShipped = () => {
        if (journal.backlogBytes === 0) resolve();
      };
      // The metrics of an orphan journal are not exported: its gauges have the names of those of the worker's journal.
      const shipper = new Shipper({ ...this.#deps, metrics: new Metrics(), journal, onShipped });
      this.#shippers.set(dir, shipper);
      shipper.start();
      onShipped();
    });
  }
}
