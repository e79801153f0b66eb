/**
 * What a step costs among many, divided by what it costs among few: parts of a worker whose cost must not grow with
 * what waits or was written before. Few and many are measured in turn, and the least time of each counts.
 */

import { join } from 'node:path';
import { setImmediate as turn } from 'node:timers/promises';
import { Activity } from '../../src/activity/activity.ts';
import { recordMarks } from '../../src/activity/activity-store.ts';
import { systemClock as clock } from '../../src/base/clock.ts';
import { unavailable } from '../../src/base/errors.ts';
import { FairQueue } from '../../src/base/fair-queue.ts';
import { limits } from '../../src/base/limits.ts';
import { systemScheduler } from '../../src/base/scheduler.ts';
import { Turns } from '../../src/base/turns.ts';
import { openPostgres, type Postgres } from '../../src/postgres/client.ts';
import { migratePostgres } from '../../src/postgres/migrate.ts';
import { root } from '../../test/harness/engine.ts';
import { silentLog as silent } from '../../test/harness/silent-log.ts';
import { startOwnPostgres } from '../own-postgres.ts';

export interface GrowthFigure {
  step: string;
  few: number;
  many: number;
  /** The least milliseconds for the same number of steps. */
  fewMs: number;
  manyMs: number;
  ratio: number;
  /** What a cost that grows with each of many would be far above. */
  ratioMax: number;
}

interface Step {
  step: string;
  few: number;
  many: number;
  ratioMax: number;
  /** Takes the same number of steps among so many; returns their milliseconds. */
  msAmong(count: number): number | Promise<number>;
}

const rounds = 5;

export async function benchGrowth(figures: GrowthFigure[]): Promise<void> {
  for (const step of [itemOfLine, refusalOfFullQueue, endOfTurn]) figures.push(await measure(step));
  const own = await startOwnPostgres('millrace-micro-');
  const postgres = openPostgres({ url: own.server.url, poolMax: 2, log: silent });
  try {
    await migratePostgres(postgres, { log: silent, dir: join(root, 'src/postgres/migrations') });
    const devices = await makeDevices(postgres, limits.activityRowsMax);
    for (const step of [roundOfOutage(postgres), marksAfterOthers(postgres, devices)])
      figures.push(await measure(step));
  } finally {
    await postgres.close();
    await own.close();
  }
}

async function measure({ step, few, many, ratioMax, msAmong }: Step): Promise<GrowthFigure> {
  let [fewMs, manyMs] = [Number.POSITIVE_INFINITY, Number.POSITIVE_INFINITY];
  for (let round = 0; round < rounds; round += 1) {
    // Ctrl-C is noticed here.
    await turn();
    fewMs = Math.min(fewMs, await msAmong(few));
    manyMs = Math.min(manyMs, await msAmong(many));
  }
  return { step, few, many, fewMs, manyMs, ratio: manyMs / fewMs, ratioMax };
}

const itemsInAll = 100_000;

/** An array that is shifted takes some hundred times as long. */
const itemOfLine: Step = {
  step: 'an item of a fair queue, by length of its line',
  few: 1_000,
  many: itemsInAll,
  ratioMax: 4,
  msAmong: (items) => {
    const started = performance.now();
    for (let done = 0; done < itemsInAll; done += items) {
      const queue = new FairQueue<number>(items);
      for (let n = 0; n < items; n += 1) queue.push({ tenant: 'a', caller: 'x' }, n);
      for (let n = 0; n < items; n += 1) queue.shift();
    }
    return performance.now() - started;
  },
};

/** A look at each caller takes a hundred times as long; memory that no cache holds takes some times as long. */
const refusalOfFullQueue: Step = {
  step: 'a refusal of a full fair queue, by callers in it',
  few: 1_000,
  many: 100_000,
  ratioMax: 20,
  msAmong: (callers) => {
    const queue = new FairQueue<number>(callers);
    for (let n = 0; n < callers; n += 1) queue.push({ tenant: 'a', caller: `${n}` }, n);
    const late = Array.from({ length: 5_000 }, (_, n) => `late ${n}`);
    const started = performance.now();
    for (const [n, caller] of late.entries())
      if (queue.push({ tenant: 'a', caller }, n) !== n) throw new Error('a full queue took one more');
    return performance.now() - started;
  },
};

const endedTurns = 1_000;

/** A look at each waiting caller takes about forty times as long. */
const endOfTurn: Step = {
  step: 'an end of work that gives its place on, by callers that wait',
  few: 2_000,
  many: 80_000,
  ratioMax: 20,
  msAmong: async (callers) => {
    const refusal = () => unavailable('rest_calls', 'full');
    const turns = new Turns({ atOnceMax: 4, waitingMax: callers, refusal });
    const ends: (() => void)[] = [];
    const work = () => new Promise<void>((resolve) => void ends.push(resolve));
    for (let n = 0; n < callers; n += 1) void turns.run('a', `customer ${n}`, work);
    const started = performance.now();
    for (let n = 0; n < endedTurns; n += 1) {
      ends.shift()!();
      await turn();
    }
    return performance.now() - started;
  },
};

const outageRounds = 3;

/** PostgreSQL is read, and refuses to be written. Writing each block again takes a hundred times as long. */
function roundOfOutage(postgres: Postgres): Step {
  const store = new Proxy(postgres, {
    get: (target, name) => {
      const member = Reflect.get(target, name) as (...args: unknown[]) => unknown;
      if (typeof member !== 'function') return member;
      return (...args: unknown[]) =>
        String(args[0]).includes('select device, active')
          ? Promise.reject(unavailable('postgres_away', 'away'))
          : member.apply(target, args);
    },
  });
  return {
    step: 'a round of activity in an outage of PostgreSQL, by devices that woke up',
    few: 2 * limits.activityRowsMax,
    many: 200 * limits.activityRowsMax,
    ratioMax: 10,
    msAmong: async (count) => {
      const scheduler = { ...systemScheduler, after: () => () => {} };
      const deps = { postgres: store, clock, log: silent, inactivityMs: 60_000, checkMs: 0, scheduler };
      const activity = new Activity(deps);
      await activity.round();
      for (let number = 0; number < count; number += 1) activity.touch({ number });
      let least = Number.POSITIVE_INFINITY;
      for (let n = 0; n < outageRounds; n += 1) {
        const started = performance.now();
        await activity.round();
        least = Math.min(least, performance.now() - started);
      }
      return least;
    },
  };
}

/** A plan of the first call on a connection, made for one row, takes many times as long for thousands. */
function marksAfterOthers(postgres: Postgres, devices: number[]): Step {
  const marks = devices.map((device) => ({ device, activeTs: 1, connectTs: 2, disconnectTs: 0 }));
  return {
    step: `marks of ${marks.length} sessions after as many on the same connection, and after one`,
    few: marks.length,
    many: 1,
    ratioMax: 5,
    msAmong: (first) =>
      postgres.transaction(async (queries) => {
        await queries.query('discard plans');
        await recordMarks(queries, marks.slice(0, first), 10_000);
        const started = performance.now();
        await recordMarks(queries, marks, 10_000);
        return performance.now() - started;
      }),
  };
}

async function makeDevices(postgres: Postgres, count: number): Promise<number[]> {
  const tenant = '00000000-0000-7000-8000-000000000001';
  const profile = '00000000-0000-7000-8000-000000000002';
  await postgres.query(`insert into tenant (id, created_time, title) values ('${tenant}', 0, 'T')`);
  await postgres.query(
    `insert into device_profile (id, created_time, tenant_id, name, profile_data)
     values ('${profile}', 0, '${tenant}', 'P', '{}')`,
  );
  const rows = await postgres.query<{ number: number }>(
    `insert into device (id, created_time, tenant_id, device_profile_id, name, device_data)
     select gen_random_uuid(), 0, '${tenant}', '${profile}', 'd-' || n, '{}' from generate_series(1, $1::int) n
     returning number`,
    [count],
  );
  return rows.map(({ number }) => number);
}
