/**
 * Reads one row for each of many callers with few questions: callers that ask in the same turn, and while a question
 * runs, share the next one. So a flood of requests does not occupy the connections to PostgreSQL. `UserSessions` and
 * `ApiKeys` identify callers of the REST API with it, and deletes of series ask for the journals. An answer is read
 * after its caller asked, never before.
 */
import { Batches } from './batches.ts';
import { unavailable } from './errors.ts';
import { limits } from './limits.ts';

class Asked<Key, Row> {
  readonly key: Key;
  readonly answer: Promise<Row | undefined>;
  resolve!: (row: Row | undefined) => void;
  reject!: (error: unknown) => void;

  constructor(key: Key) {
    this.key = key;
    this.answer = new Promise((resolve, reject) => {
      this.resolve = resolve;
      this.reject = reject;
    });
  }
}

export class GatheredReads<Key, Row> {
  readonly #read: (keys: Key[]) => Promise<Map<number, Row>>;
  /** The keys of the next question, by name. */
  readonly #asked = new Map<string, Asked<Key, Row>>();
  readonly #batches = new Batches(
    () => this.#asked.size > 0,
    () => this.#runBatch(),
  );

  /** `read` returns the rows that exist, by the place of their key. */
  constructor(read: (keys: Key[]) => Promise<Map<number, Row>>) {
    this.#read = read;
  }

  /** `name`: equal for equal keys, whose callers share one answer. Throws 503 when too many wait. */
  async find(name: string, key: Key): Promise<Row | undefined> {
    const known = this.#asked.get(name);
    if (known) return await known.answer;
    if (this.#asked.size >= limits.callerReadsQueueMax) {
      throw unavailable('rest_calls', 'Too many calls of the API wait; call again later.');
    }
    const asked = new Asked<Key, Row>(key);
    this.#asked.set(name, asked);
    this.#batches.wake();
    return await asked.answer;
  }

  async #runBatch(): Promise<void> {
    const batch: Asked<Key, Row>[] = [];
    for (const [name, asked] of this.#asked) {
      if (batch.length === limits.callerReadsBatchMax) break;
      this.#asked.delete(name);
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

/** Rows of a statement whose `place` counts the keys from 1. */
export function byPlace<Row extends { place: number }>(rows: Row[]): Map<number, Omit<Row, 'place'>> {
  return new Map(rows.map(({ place, ...row }) => [place - 1, row]));
}
