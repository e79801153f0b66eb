/**
 * Reads one row for each of many callers with few questions: callers that ask in the same turn, and while a question
 * runs, share the next one. So a flood of requests does not occupy the connections to PostgreSQL. `UserSessions` and
 * `ApiKeys` identify callers of the REST API with it, and deletes of series ask for the journals. An answer is read
 * after its caller asked, never before. Askers take turns: a user by sessions, an address by API keys, because nothing
 * else is known of a key that was never given.
 */
import { Batches } from './batches.ts';
import { type Fault, unavailable } from './errors.ts';
import { FairQueue } from './fair-queue.ts';
import { limits } from './limits.ts';

class Asked<Key, Row> {
  readonly name: string;
  readonly key: Key;
  readonly answer: Promise<Row | undefined>;
  resolve!: (row: Row | undefined) => void;
  reject!: (error: unknown) => void;

  constructor(name: string, key: Key) {
    this.name = name;
    this.key = key;
    this.answer = new Promise((resolve, reject) => {
      this.resolve = resolve;
      this.reject = reject;
    });
  }
}

export class GatheredReads<Key, Row> {
  readonly #read: (keys: Key[]) => Promise<Map<number, Row>>;
  /** The keys of the next questions, by name. */
  readonly #asked = new Map<string, Asked<Key, Row>>();
  readonly #queue = new FairQueue<Asked<Key, Row>>(limits.callerReadsQueueMax);
  readonly #batches = new Batches(
    () => this.#asked.size > 0,
    () => this.#runBatch(),
  );

  /** `read` returns the rows that exist, by the place of their key. */
  constructor(read: (keys: Key[]) => Promise<Map<number, Row>>) {
    this.#read = read;
  }

  /**
   * `name`: equal for equal keys, whose callers share one answer. `asker`: whose turn the question uses. Throws 503
   * when too many wait.
   */
  async find(name: string, key: Key, asker = ''): Promise<Row | undefined> {
    const known = this.#asked.get(name);
    if (known) return await known.answer;
    const asked = new Asked<Key, Row>(name, key);
    this.#asked.set(name, asked);
    const displaced = this.#queue.push({ tenant: asker, caller: '' }, asked);
    if (displaced) {
      this.#asked.delete(displaced.name);
      displaced.reject(tooManyAsked());
    }
    this.#batches.wake();
    return await asked.answer;
  }

  async #runBatch(): Promise<void> {
    const batch: Asked<Key, Row>[] = [];
    while (batch.length < limits.callerReadsBatchMax) {
      const asked = this.#queue.shift();
      if (!asked) break;
      this.#asked.delete(asked.name);
      batch.push(asked);
    }
    try {
      const rows = await this.#read(batch.map(({ key }) => key));
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
