/**
 * Limits the statements that use the engine at once. Queries leave a reserve for inserts, so long queries never delay
 * ingest. The reads of one tenant, from all workers and reports, leave a slot to other tenants; among those that wait,
 * the tenant that has fewest running ones comes first. Waiting is limited in number and in time; beyond these caps a
 * statement gets ClickHouse's error 202.
 */
import { type PlaceOwner, Places } from '../../base/places.ts';
import { Exception } from './exception.ts';

/** A patient insert has rows that are not of today. */
export type SlotKind = 'query' | 'insert' | 'patient insert';

interface Waiter {
  kind: SlotKind;
  owner: string | undefined;
  admit(): void;
}

export class Slots {
  readonly #slots: number;
  readonly #queries: Places;
  /** Owner → queries that run. */
  readonly #running = new Map<string, number>();
  readonly #patientSlots: number;
  readonly #waitersMax: number;
  readonly #waitMsMax: number;
  readonly #waiters = new Set<Waiter>();
  #inserts = 0;
  #patientInserts = 0;

  constructor(slots: number, querySlots: number, waitersMax: number, waitMsMax: number) {
    this.#slots = slots;
    this.#queries = new Places(querySlots);
    this.#patientSlots = Math.max(1, Math.floor(slots / 2));
    this.#waitersMax = waitersMax;
    this.#waitMsMax = waitMsMax;
  }

  get running(): number {
    return this.#queries.held + this.#inserts + this.#patientInserts;
  }

  /**
   * Resolves with the function that gives the slot back. `owner`: of a query; undefined for a statement of Millrace
   * itself, which has no share.
   */
  async take(kind: SlotKind, gone: AbortSignal, owner?: string): Promise<() => void> {
    if (!this.#free({ kind, owner })) await this.#wait(kind, owner, gone);
    else this.#count({ kind, owner }, 1);
    let returned = false;
    return () => {
      if (returned) return;
      returned = true;
      this.#count({ kind, owner }, -1);
      this.#admitNext();
    };
  }

  #wait(kind: SlotKind, owner: string | undefined, gone: AbortSignal): Promise<void> {
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
        owner,
        admit: () => {
          leave();
          this.#count(waiter, 1);
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
    const runningOf = ({ owner = '' }: Waiter): number => this.#running.get(owner) ?? 0;
    // The sort keeps the order of waiters whose owners have as many running queries.
    for (const waiter of [...this.#waiters].sort((a, b) => runningOf(a) - runningOf(b))) {
      if (this.#free(waiter)) waiter.admit();
    }
  }

  #free({ kind, owner }: Pick<Waiter, 'kind' | 'owner'>): boolean {
    if (this.running >= this.#slots) return false;
    if (kind === 'insert') return true;
    // One slot is left to inserts that cannot wait.
    if (this.#queries.held + this.#patientInserts >= this.#slots - 1) return false;
    if (kind === 'query') return this.#queries.outcome(shareOf(owner)) === 'taken';
    return this.#patientInserts < this.#patientSlots;
  }

  #count({ kind, owner }: Pick<Waiter, 'kind' | 'owner'>, by: 1 | -1): void {
    if (kind === 'query') {
      if (by === 1) this.#queries.take(shareOf(owner));
      else this.#queries.release(shareOf(owner));
      if (owner !== undefined) this.#countOwner(owner, by);
    } else if (kind === 'insert') this.#inserts += by;
    else this.#patientInserts += by;
  }

  #countOwner(owner: string, by: number): void {
    const running = (this.#running.get(owner) ?? 0) + by;
    if (running > 0) this.#running.set(owner, running);
    else this.#running.delete(owner);
  }
}

/** Nine times the slots that stay free, so one owner never has the last one. */
function shareOf(owner: string | undefined): PlaceOwner[] {
  return owner === undefined ? [] : [{ name: owner, timesFree: 9 }];
}

function tooMany(reason: string): Exception {
  return new Exception(202, 'TOO_MANY_SIMULTANEOUS_QUERIES', `Too many simultaneous queries: ${reason}.`);
}
