/**
 * Computes how far the journals of this host have settled deletes. A fence is a value of the sequence of tombstones. A
 * journal has settled a fence when it has shipped every frame that it held when the fence was read. No clock is used.
 * `erase.ts` calls `note` with a fence that was read before the reports were requested.
 */
import type { JournalReport } from '../ingest/journal-report.ts';
import type { OwnJournal } from '../ingest/journal-store.ts';

interface Mark {
  fence: number;
  orderHigh: bigint;
}

interface Progress {
  run: string;
  settled: number;
  marks: Mark[];
}

/** The marks of a journal that ships nothing for long while deletes are made; beyond it the newest mark is replaced. */
const marksMax = 1_000;

export class Settling {
  readonly #journals = new Map<number, Progress>();

  /** True when the opening of this journal has been noted. */
  knows({ writer, run }: JournalReport): boolean {
    return this.#journals.get(writer)?.run === run;
  }

  note(fence: number, reports: JournalReport[]): OwnJournal[] {
    return reports.map((report) => ({ ...report, settled: this.#note(fence, report) }));
  }

  #note(fence: number, { writer, run, orderHigh, orderShipped }: JournalReport): number {
    let progress = this.#journals.get(writer);
    if (progress?.run !== run) {
      progress = { run, settled: 0, marks: [] };
      this.#journals.set(writer, progress);
    }
    const { marks } = progress;
    const high = BigInt(orderHigh);
    // The append that was in flight at a mark has failed: none of its rows will be shipped.
    for (let i = marks.length - 1; i >= 0 && marks[i]!.orderHigh > high; i -= 1) marks[i]!.orderHigh = high;
    if (fence > (marks.at(-1)?.fence ?? progress.settled) || (marks.length === 0 && progress.settled === 0)) {
      if (marks.length === marksMax) marks.pop();
      marks.push({ fence, orderHigh: high });
    }
    const shipped = BigInt(orderShipped);
    while (marks.length > 0 && marks[0]!.orderHigh <= shipped) progress.settled = marks.shift()!.fence;
    return progress.settled;
  }
}
