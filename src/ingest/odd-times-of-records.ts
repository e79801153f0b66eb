/** Reports the odd times of accepted records. Called for messages with an unusual time only. */
import { type OddTime, type OddTimeKind, oddKindOf } from '../diagnostics/odd-time.ts';
import type { Chunk } from '../telemetry/decoded-chunk.ts';
import type { Rows } from '../telemetry/rows.ts';

/** Called with one of the odd times of a device and kind, and with their number. */
export type OnOddTimes = (device: number, last: OddTime, count: number) => void;

/** Reports records from the span `first` on. A `ts` is odd from `aheadMsMax` ahead of `now` on. */
export function reportOddTimes(
  rows: Rows | Chunk,
  first: number,
  now: number,
  aheadMsMax: number,
  report: OnOddTimes,
): void {
  const spans = rows.spans();
  const found = new OddTimesFound(report);
  for (let i = first; i < spans.count; i += 1) {
    const kind = oddKindOf(spans.ts[i]!, now, aheadMsMax);
    if (kind !== undefined) found.add(spans.device[i]!, kind, spans.ts[i]!);
  }
  for (const { span, ts, unit } of rows.converted) if (span >= first) found.add(spans.device[span]!, unit, ts);
  found.end();
}

/** Joins the odd times of neighbouring records of one device and kind into one report. */
class OddTimesFound {
  readonly #report: OnOddTimes;
  #device = 0;
  #last: OddTime | undefined = undefined;
  #count = 0;

  constructor(report: OnOddTimes) {
    this.#report = report;
  }

  add(device: number, kind: OddTimeKind, ts: number): void {
    if (device !== this.#device || kind !== this.#last?.kind) this.end();
    this.#device = device;
    this.#last = { kind, ts };
    this.#count += 1;
  }

  end(): void {
    if (this.#last !== undefined) this.#report(this.#device, this.#last, this.#count);
    this.#last = undefined;
    this.#count = 0;
  }
}
