/**
 * Answers many callers with few statements: callers that ask in the same turn, and while a statement runs, share the
 * next one. So a flood of requests occupies one connection to PostgreSQL. `UserSessions` and `ApiKeys` identify callers
 * of the REST API with it, and deletes of series run all their statements with it. An answer is of a statement that
 * began after its caller asked, never before. Askers take turns: a user by sessions, an address by API keys, because
 * nothing else is known of a key that was never given, and a tenant by deletes.
 */
import { Batches } from './batches.ts';
import { type Fault, unavailable } from './errors.ts';
import { FairQueue } from './fair-queue.ts';
import { limits } from './limits.ts';

class Asked<Key, Row> {
  /** Undefined: the key is of one caller. */
  readonly name: string | undefined;
  readonly key: Key;
  readonly answer: Promise<Row | undefined>;
  resolve!: (row: Row | undefined) => void;
  reject!: (error: unknown) => void;

  constructor(name: string | undefined, key: Key) {
    this.name = name;
    this.key = key;
    this.answer = new Promise((resolve, reject) => {
      this.resolve = resolve;
      this.reject = reject;
    });
  }
}

export class GatheredStatements<Key, Row> {
  readonly #run: (keys: Key[]) => Promise<Map<number, Row>>;
  readonly #batchMax: number;
  /** The named keys of the next statements. */
  readonly #asked = new Map<string, Asked<Key, Row>>();
  readonly #queue = new FairQueue<Asked<Key, Row>>(limits.callerReadsQueueMax);
  readonly #batches = new Batches(
    () => this.#queue.length > 0,
    () => this.#runBatch(),
  );

  /** `run` runs one statement, for up to `batchMax` keys. Returns the existing rows by the place of their key. */
  constructor(run: (keys: Key[]) => Promise<Map<number, Row>>, batchMax: number = limits.callerReadsBatchMax) {
    this.#run = run;
    this.#batchMax = batchMax;
  }

  /**
   * `name`: equal for equal keys, whose callers share one answer; undefined for a write, which each caller has for
   * itself. `asker`: whose turn the key uses. Throws 503 when too many wait.
   */
  async ask(name: string | undefined, key: Key, asker = ''): Promise<Row | undefined> {
    const known = name === undefined ? undefined : this.#asked.get(name);
    if (known) return await known.answer;
    const asked = new Asked<Key, Row>(name, key);
    if (name !== undefined) this.#asked.set(name, asked);
    const displaced = this.#queue.push({ tenant: asker, caller: '' }, asked);
    if (displaced) {
      this.#forget(displaced);
      displaced.reject(tooManyAsked());
    }
    this.#batches.wake();
    return await asked.answer;
  }

  #forget({ name }: Asked<Key, Row>): void {
    if (name !== undefined) this.#asked.delete(name);
  }

  async #runBatch(): Promise<void> {
    const batch: Asked<Key, Row>[] = [];
    while (batch.length < this.#batchMax) {
      const asked = this.#queue.shift();
      if (!asked) break;
      this.#forget(asked);
      batch.push(asked);
    }
    try {
      const rows = await this.#run(batch.map(({ key }) => key));
      for (const [place, { resolve }] of batch.entries()) resolve(rows.get(place));
    } catch (error) {
      for (const { reject } of batch) reject(error);
    }
  }
}

function tooManyAsked(): Fault {
  return unavailable('rest_calls', 'Too many calls of the API wait; call again later.');
}

/** Rows of a statement whose `place` counts the keys from 1. */
export function byPlace<Row extends { place: number }>(rows: Row[]): Map<number, Omit<Row, 'place'>> {
  return new Map(rows.map(({ place, ...row }) => [place - 1, row]));
}
