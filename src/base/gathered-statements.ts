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

/** How much one statement takes. */
interface StatementSize<Key> {
  keysMax?: number;
  /** A statement takes no further key once its keys have this size. A turn of an asker is a 256th of it. */
  sizeMax?: number;
  sizeOf?: (key: Key) => number;
}

class Asked<Key, Row> {
  /** Undefined: the key is of one caller. */
  readonly name: string | undefined;
  readonly key: Key;
  readonly size: number;
  readonly answer: Promise<Row | undefined>;
  resolve!: (row: Row | undefined) => void;
  reject!: (error: unknown) => void;

  constructor(name: string | undefined, key: Key, size: number) {
    this.name = name;
    this.key = key;
    this.size = size;
    this.answer = new Promise((resolve, reject) => {
      this.resolve = resolve;
      this.reject = reject;
    });
  }
}

export class GatheredStatements<Key, Row> {
  readonly #run: (keys: Key[]) => Promise<Map<number, Row>>;
  readonly #keysMax: number;
  readonly #sizeMax: number;
  readonly #sizeOf: (key: Key) => number;
  /** The named keys of the next statements. */
  readonly #asked = new Map<string, Asked<Key, Row>>();
  readonly #queue: FairQueue<Asked<Key, Row>>;
  readonly #batches = new Batches(
    () => this.#queue.length > 0,
    () => this.#runBatch(),
  );

  /** `run` runs one statement, and returns the existing rows by the place of their key. */
  constructor(run: (keys: Key[]) => Promise<Map<number, Row>>, size: StatementSize<Key> = {}) {
    const { keysMax = limits.callerReadsBatchMax, sizeMax = keysMax, sizeOf = () => 1 } = size;
    this.#run = run;
    this.#keysMax = keysMax;
    this.#sizeMax = sizeMax;
    this.#sizeOf = sizeOf;
    this.#queue = new FairQueue(limits.callerReadsQueueMax, size.sizeMax === undefined ? 1 : sizeMax / 256);
  }

  /**
   * `name`: equal for equal keys, whose callers share one answer; undefined for a write, which each caller has for
   * itself. `asker`: whose turn the key uses. Throws 503 when too many wait.
   */
  async ask(name: string | undefined, key: Key, asker = ''): Promise<Row | undefined> {
    const known = name === undefined ? undefined : this.#asked.get(name);
    if (known) return await known.answer;
    const asked = new Asked<Key, Row>(name, key, this.#sizeOf(key));
    if (name !== undefined) this.#asked.set(name, asked);
    const displaced = this.#queue.push({ tenant: asker, caller: '' }, asked, asked.size);
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
    for (let size = 0; batch.length < this.#keysMax && size < this.#sizeMax; ) {
      const asked = this.#queue.shift();
      if (!asked) break;
      this.#forget(asked);
      size += asked.size;
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
