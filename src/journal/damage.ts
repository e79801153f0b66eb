/** Notes what is damaged in a journal: keeps the bytes for an operator, logs and counts the damage. */
import type { Log } from '../base/log.ts';
import type { Counter, Metrics } from '../base/metrics/metrics.ts';
import type { Disk } from './disk.ts';
import type { Quarantine } from './quarantine.ts';
import type { Gap } from './reader.ts';
import { readGap } from './recovery.ts';
import type { Segment } from './waiting-segment.ts';

export class Damage {
  readonly #disk: Disk;
  readonly #log: Log;
  readonly #quarantine: Quarantine;
  readonly #count: Counter | undefined;
  found = false;

  constructor(disk: Disk, log: Log, quarantine: Quarantine, metrics: Metrics | undefined) {
    this.#disk = disk;
    this.#log = log;
    this.#quarantine = quarantine;
    this.#count = metrics?.counter('journal_corrupt_total', 'Damaged stretches found in segments.');
  }

  async gap(segment: Segment, gap: Gap): Promise<void> {
    const isKnown = () => segment.gaps.some((known) => known.from <= gap.from && gap.to <= known.to);
    if (isKnown()) return;
    this.found = true;
    const name = `${segment.epoch}-${segment.seq}`;
    await this.#quarantine.addGap(name, gap.from, await readGap(this.#disk, segment, gap));
    // Both lanes may find the gap at the same time.
    if (isKnown()) return;
    segment.gaps.push(gap);
    this.#count?.add(1);
    this.#log.error('journal_corrupt', { segment: name, from: gap.from, to: gap.to });
  }

  /** Keeps unreadable bytes in quarantine. */
  async keep(name: string, from: number, bytes: Buffer): Promise<void> {
    this.found = true;
    if ((await this.#quarantine.addGap(name, from, bytes)) === 'known') return;
    this.#count?.add(1);
    this.#log.error('journal_corrupt', { segment: name, from, to: from + bytes.length });
  }

  lost(name: string): void {
    this.found = true;
    this.#count?.add(1);
    this.#log.error('journal_corrupt', { segment: name, reason: 'header' });
  }
}
