/**
 * Holds the journals of all workers for a backup: each worker names the content of a complete copy and recycles no
 * segment until the hold ends. `WorkerPool` of the primary owns the hold, which covers only the workers of this
 * instance.
 */
import { systemScheduler } from '../../base/scheduler.ts';
import type { JournalCut } from '../../journal/journal.ts';

export interface HoldRequest {
  kind: 'holdJournals' | 'releaseJournals';
  id: number;
}

export interface HoldAnswer {
  kind: 'journalsHeld';
  id: number;
  cuts: JournalCut[];
  /** True when no hold ended before its release. */
  intact: boolean;
}

interface Hold {
  id: number;
  cuts: JournalCut[];
  /** True while no worker ended, and no full disk ended the hold of a worker. */
  intact: boolean;
  /** Workers that have not answered the last message. */
  missing: Set<number>;
  answered: () => void;
  failed: (error: Error) => void;
}

const answerMsMax = 10_000;

export class JournalHold {
  readonly #slots: number;
  readonly #send: (slot: number, message: HoldRequest) => void;
  readonly #missing: () => string | undefined;
  #lastId = 0;
  #hold: Hold | undefined;

  /** `missing` names a worker that cannot answer, and the reason; undefined when all workers can answer. */
  constructor(slots: number, send: (slot: number, message: HoldRequest) => void, missing: () => string | undefined) {
    this.#slots = slots;
    this.#send = send;
    this.#missing = missing;
  }

  /** Returns cuts that contain every frame acknowledged before this call, except frames that are in ClickHouse. */
  async begin(): Promise<{ id: number; cuts: JournalCut[] }> {
    if (this.#hold) throw new Error('another backup holds the journals');
    const missing = this.#missing();
    if (missing !== undefined) throw new Error(missing);
    this.#lastId += 1;
    const nothing = () => {};
    const hold: Hold = {
      id: this.#lastId,
      cuts: [],
      intact: true,
      missing: new Set(),
      answered: nothing,
      failed: nothing,
    };
    this.#hold = hold;
    try {
      await this.#sendAll(hold, 'holdJournals');
      return { id: hold.id, cuts: hold.cuts };
    } catch (error) {
      await this.end(hold.id);
      throw error;
    }
  }

  /** Returns false when the copy made during the hold may be incomplete, or when the hold has ended already. */
  async end(id: number): Promise<boolean> {
    const hold = this.#hold;
    if (hold?.id !== id) return false;
    try {
      await this.#sendAll(hold, 'releaseJournals');
      return hold.intact;
    } catch {
      return false;
    } finally {
      this.#hold = undefined;
    }
  }

  received(slot: number, { id, cuts, intact }: HoldAnswer): void {
    const hold = this.#hold;
    if (hold?.id !== id || !hold.missing.delete(slot)) return;
    hold.cuts.push(...cuts);
    hold.intact &&= intact;
    if (hold.missing.size === 0) hold.answered();
  }

  /** The next worker of this slot knows nothing of the hold. */
  workerEnded(): void {
    if (!this.#hold) return;
    this.#hold.intact = false;
    this.#hold.failed(new Error('a worker ended'));
  }

  async #sendAll(hold: Hold, kind: HoldRequest['kind']): Promise<void> {
    const answered = new Promise<void>((resolve, reject) => {
      hold.answered = resolve;
      hold.failed = reject;
    });
    const stopTimer = systemScheduler.after(answerMsMax, () => hold.failed(new Error('a worker does not answer')));
    try {
      for (let slot = 0; slot < this.#slots; slot += 1) hold.missing.add(slot);
      for (let slot = 0; slot < this.#slots; slot += 1) this.#send(slot, { kind, id: hold.id });
      await answered;
    } finally {
      stopTimer();
    }
  }
}
