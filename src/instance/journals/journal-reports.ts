/**
 * The primary's side of journal reports: requests the state of the journals from every worker, and answers when all
 * have answered or at the deadline. Called by `worker-pool.ts`; deletes use the result (`erase/erase.ts`).
 */
import { limits } from '../../base/limits.ts';
import { systemScheduler } from '../../base/scheduler.ts';
import type { JournalReport } from '../../ingest/journal-report.ts';

export interface JournalReportsOfHost {
  reports: JournalReport[];
  /** True when every worker of the instance has answered for all of its journals. */
  isWhole: boolean;
}

interface Asked {
  /** Slots that have not answered. */
  missing: Set<number>;
  reports: JournalReport[];
  isWhole: boolean;
  done: () => void;
}

export class JournalReports {
  readonly #asked = new Map<number, Asked>();
  #last = 0;

  /** `ask` sends the question to a slot; false when that slot has no worker that can answer. */
  gather(slots: number[], ask: (slot: number, id: number) => boolean): Promise<JournalReportsOfHost> {
    this.#last += 1;
    const id = this.#last;
    return new Promise((resolve) => {
      const asked: Asked = {
        missing: new Set(),
        reports: [],
        isWhole: true,
        done: () => {
          stopTimer();
          this.#asked.delete(id);
          resolve({ reports: asked.reports, isWhole: asked.isWhole && asked.missing.size === 0 });
        },
      };
      const stopTimer = systemScheduler.after(limits.journalReportsMsMax, () => asked.done());
      this.#asked.set(id, asked);
      for (const slot of slots) {
        if (ask(slot, id)) asked.missing.add(slot);
        else asked.isWhole = false;
      }
      if (asked.missing.size === 0) asked.done();
    });
  }

  receive(id: number, slot: number, { reports, isWhole }: JournalReportsOfHost): void {
    const asked = this.#asked.get(id);
    if (!asked?.missing.delete(slot)) return;
    asked.reports.push(...reports);
    asked.isWhole &&= isWhole;
    if (asked.missing.size === 0) asked.done();
  }
}
