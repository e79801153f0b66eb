/**
 * Limits the statements that use the engine at once. Queries leave a reserve for inserts, so long queries never delay
 * ingest. Waiting is limited in number and in time; beyond these caps a statement gets ClickHouse's error 202.
 */
import { Exception } from './exception.ts';

/** A patient insert has rows that are not of today. */
export type SlotKind = 'query' | 'insert' | 'patient insert';

interface Waiter {
  kind: SlotKind;
  admit(): void;
}

export class Slots {
  readonly #slots: number;
  readonly #querySlots: number;
  readonly #patientSlots: number;
  readonly #waitersMax: number;
  readonly #waitMsMax: number;
  readonly #waiters = new Set<Waiter>();
  #queries = 0;
  #inserts = 0;
  #patientInserts = 0;

  constructor(slots: number, querySlots: number, waitersMax: number, waitMsMax: number) {
    this.#slots = slots;
    this.#querySlots = querySlots;
    this.#patientSlots = Math.max(1, Math.floor(slots / 2));
    this.#waitersMax = waitersMax;
    this.#waitMsMax = waitMsMax;
  }

  get running(): number {
    return this.#queries + this.#inserts + this.#patientInserts;
  }

  /** Resolves with the function that gives the slot back. */
  async take(kind: SlotKind, gone: AbortSignal): Promise<() => void> {
    if (!this.#free(kind)) await this.#wait(kind, gone);
    else this.#count(kind, 1);
    let returned = false;
    return () => {
      if (returned) return;
      returned = true;
      this.#count(kind, -1);
      this.#admitNext();
    };
  }

  #wait(kind: SlotKind, gone: AbortSignal): Promise<void> {
    if (this.#waiters.size >= this.#waitersMax) throw tooMany(`${this.#waitersMax} are already waiting`);
    return new Promise((resolve, reject) => {
      const leave = (): void => {
        clearTimeout(timer);
        gone.removeEventListener('abort', onGone);
        this.#waiters.delete(waiter);
      };
      const refuse = (reason: string): void => {
        leave();
        reject(tooMany(reason));
      };
      const waiter: Waiter = {
        kind,
        admit: () => {
          leave();
          this.#count(kind, 1);
          resolve();
        },
      };
      const onGone = (): void => refuse('the client left');
      const timer = setTimeout(() => refuse(`none became free within ${this.#waitMsMax} ms`), this.#waitMsMax);
      gone.addEventListener('abort', onGone);
      this.#waiters.add(waiter);
    });
  }

  #admitNext(): void {
    for (const waiter of this.#waiters) {
      if (this.#free(waiter.kind)) waiter.admit();
    }
  }

  #free(kind: SlotKind): boolean {
    if (this.running >= this.#slots) return false;
    if (kind === 'insert') return true;
    // One slot is left to inserts that cannot wait.
    if (this.#queries + this.#patientInserts >= this.#slots - 1) return false;
    return kind === 'query' ? this.#queries < this.#querySlots : this.#patientInserts < this.#patientSlots;
  }

  #count(kind: SlotKind, by: number): void {
    if (kind === 'query') this.#queries += by;
    else if (kind === 'insert') this.#inserts += by;
    else this.#patientInserts += by;
  }
}

function tooMany(reason: string): Exception {
  return new Exception(202, 'TOO_MANY_SIMULTANEOUS_QUERIES', `Too many simultaneous queries: ${reason}.`);
}
