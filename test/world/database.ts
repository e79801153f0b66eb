/**
 * A PostgreSQL of a world: runs one statement after the other at the moment of its commit, takes its time, and fails as
 * its mood says. A transaction has its number from its begin, so a row may become visible after rows of later numbers.
 */
import { unavailable } from '../../src/base/errors.ts';
import type { LoggedChange } from '../../src/device/sql/credential-log-store.ts';
import type { Queries } from '../../src/postgres/client.ts';
import type { Random } from '../harness/random.ts';
import { statementOf, Tables } from './tables.ts';
import { beginsAt, type ProcessTime, type VirtualTime } from './virtual-time.ts';

/**
 * `well`; `down`: no connection, and running statements are lost; `slow`: a statement takes up to `ms`; `deaf`: a
 * statement is carried out, and every second answer is lost.
 */
type DatabaseMood = { kind: 'well' | 'down' | 'deaf' } | { kind: 'slow'; ms: number };

type Work<Result> = (commit: { transaction: bigint; now: number; snapshot: string }) => Result;

/** A statement takes no longer by its driver. */
const timeoutMsMax = 10_000;

export class Database {
  mood: DatabaseMood = { kind: 'well' };
  readonly tables = new Tables();
  readonly #time: VirtualTime;
  readonly #random: Random;
  /** The numbers of transactions that have not ended. */
  readonly #open = new Set<bigint>();
  #transaction = 700n;
  /** Counts the times at which the database was down. */
  #downs = 0;

  constructor(time: VirtualTime, random: Random) {
    this.#time = time;
    this.#random = random;
  }

  /** The connections of one process. A process that has ended gets no answers. */
  queriesOf(process: ProcessTime): Queries {
    return {
      query: async <Row>(text: string, values: unknown[] = [], { timeoutMs = timeoutMsMax } = {}): Promise<Row[]> => {
        const statement = statementOf(text);
        return await this.#ask(process, timeoutMs, (commit) => statement(this.tables, values, commit) as Row[]);
      },
    };
  }

  goDown(ms: number): void {
    this.#downs += 1;
    this.turn({ kind: 'down' }, ms);
  }

  /** Sets the mood for a time. */
  turn(mood: DatabaseMood, ms: number): void {
    this.mood = mood;
    this.#time.after(ms, () => {
      if (this.mood === mood) this.mood = { kind: 'well' };
    });
  }

  /** Changes the credentials of a device, or deletes the device; undefined when the device is gone. */
  async changeDevice(
    process: ProcessTime,
    number: number,
    change: 'credentials' | 'deleted',
  ): Promise<LoggedChange | undefined> {
    return await this.#ask(process, timeoutMsMax, (commit) => {
      const device = this.tables.devices.get(number);
      if (!device) return undefined;
      device.credentialsVersion += 1;
      device.version += 1;
      const isDeleted = change === 'deleted';
      if (isDeleted) this.tables.deleteDevice(number);
      return this.tables.log(device, isDeleted, commit);
    });
  }

  async #ask<Result>(process: ProcessTime, timeoutMs: number, work: Work<Result>): Promise<Result> {
    const outcome = await new Promise<{ result: Result } | Error>((resolve) => {
      const stopTimeout = process.after(timeoutMs, () => resolve(new Error('Query read timeout')));
      void this.#carryOut(work).then((done) => {
        stopTimeout();
        // The answer takes time to reach the client.
        process.after(this.#random.between(0.05, 0.5), () => resolve(done));
      });
    });
    if (outcome instanceof Error) throw 'code' in outcome ? outcome : away(outcome.message);
    return outcome.result;
  }

  async #carryOut<Result>(work: Work<Result>): Promise<{ result: Result } | Error> {
    const { mood } = this;
    if (mood.kind === 'down') return new Error('connect ECONNREFUSED');
    this.#transaction += 1n;
    const transaction = this.#transaction;
    const downs = this.#downs;
    this.#open.add(transaction);
    await this.#time.sleep(mood.kind === 'slow' ? this.#random.between(1, mood.ms) : this.#random.between(0.2, 3));
    this.#open.delete(transaction);
    if (this.#downs > downs) return new Error('Connection terminated unexpectedly');
    const next = this.#transaction + 1n;
    const oldest = [...this.#open].reduce((least, each) => (each < least ? each : least), next);
    const snapshot = `${oldest}:${next}:${[...this.#open]}`;
    try {
      const result = work({ transaction, now: Math.floor(beginsAt + this.#time.passed), snapshot });
      const isLost = mood.kind === 'deaf' && this.#random.next() < 0.5;
      return isLost ? new Error('Connection terminated unexpectedly') : { result };
    } catch (error) {
      if (!(error instanceof Error && 'code' in error)) throw error;
      return error;
    }
  }
}

function away(message: string): Error {
  const fault = unavailable('postgres_away', 'The database cannot be reached at the moment. Try again later.');
  fault.cause = new Error(message);
  return fault;
}
