/**
 * The operator of a world with several stores: moves buckets of the devices that send, as `npm run shards` does. The
 * command may be killed at any moment, and is called again until all moves are done.
 */
import type { ClickHouse } from '../../src/clickhouse/client.ts';
import { moveBuckets } from '../../src/instance/stores/shard-moves.ts';
import type { Random } from '../harness/random.ts';
import type { Database } from './database.ts';
import type { Store } from './store.ts';
import { ProcessTime, type VirtualTime } from './virtual-time.ts';

interface BucketMoverDeps {
  time: VirtualTime;
  random: Random;
  database: Database;
  stores: readonly Store[];
  buckets: readonly number[];
  note: (line: string) => void;
}

const againMs = 10_000;
const movesMax = 2;
/** Some calls are killed within this time. */
const killedMsMax = 15_000;

export class BucketMover {
  readonly #deps: BucketMoverDeps;
  isDone = false;

  constructor(deps: BucketMoverDeps) {
    this.#deps = deps;
  }

  /** Begins within `beginMsMax`. */
  async run(beginMsMax: number): Promise<void> {
    const { time, random } = this.#deps;
    await time.sleep(random.below(beginMsMax));
    for (let moves = 1 + random.below(movesMax); moves > 0; moves -= 1) {
      while (!(await this.#call())) await time.sleep(againMs);
    }
    this.isDone = true;
  }

  /** Returns true when the command has ended without an error. */
  async #call(): Promise<boolean> {
    const { time, random, database, stores, note } = this.#deps;
    const process = new ProcessTime(time, 0);
    const postgres = database.queriesOf(process);
    const shards = stores.map((store) => store.moverOf(process) as unknown as ClickHouse);
    const own = { cluster: '', withoutSilent: random.next() < 0.5, clock: process, scheduler: process };
    const say = (line: string) => note(`the move of buckets: ${line}`);
    const moved = moveBuckets({ ...own, postgres, shards, say }, ({ shardOf }) => this.#plan(shardOf)).then(
      () => true,
      (error: Error) => {
        say(error.message);
        return false;
      },
    );
    if (random.next() < 0.85) return await moved;
    const killed = time.sleep(random.below(killedMsMax)).then(() => {
      if (!process.isOver) say('is killed');
      process.end();
      return false;
    });
    return await Promise.race([moved, killed]);
  }

  #plan(shardOf: Uint8Array): Map<number, number> {
    const { random, stores, buckets } = this.#deps;
    const moves = new Map<number, number>();
    for (const bucket of buckets) {
      const to = random.below(stores.length);
      if (to !== shardOf[bucket]) moves.set(bucket, to);
    }
    return moves;
  }
}
