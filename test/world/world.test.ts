/**
 * Fifty worlds: hosts and workers of the real classes in virtual time, under faults that a seed chooses:
 *
 *     telemetry     what was acknowledged is stored once, in order, with the right latest value, also as a record; no
 *                   good row is in quarantine
 *     sessions      a device has one session and valid credentials, 5 s after the last fault
 *     commands      one without persistence is executed once at most, with QoS 0; no caller is answered that a command
 *                   did not reach its device, when it did; a persistent one is executed; those that waited for a
 *                   device come in the order of their ids
 *     shards        while buckets of devices move between ClickHouse servers, a point that was readable stays readable
 *     attributes    a device has the shared attributes that are stored, 5 s after the last fault
 *     rate limits   after the last fault, all workers together accept what the limit of a device allows, and no less
 *     bus           nothing is sent when nothing happens, no worker keeps a channel or a command that has ended, and
 *                   the Redis, or the hub, has exactly the subscriptions of the workers
 *
 * `npm run test:long` runs three hundred others, and `npm run bench -- world` any seeds.
 */
import { expect, test } from 'vitest';
import { type Plan, planOf, runWorld, shrink } from './world.ts';

const seeds = /^(\d+)-(\d+)$/.exec(process.env['WORLD_SEEDS'] ?? '1-50');
if (!seeds) throw new Error('WORLD_SEEDS must be the first and the last seed, as in 1-50.');
const [firstSeed, lastSeed] = [Number(seeds[1]), Number(seeds[2])];
const together = 50;

for (let first = firstSeed; first <= lastSeed; first += together) {
  const last = Math.min(first + together - 1, lastSeed);
  test(`the worlds of seeds ${first} to ${last} keep every promise`, async () => {
    for (let seed = first; seed <= last; seed += 1) {
      const plan = planOf(seed);
      const { faults } = await runWorld(plan);
      if (faults.length > 0) expect.unreachable(await reportOf(plan));
    }
  });
}

test('a run of a seed is the same each time', async () => {
  const plan = planOf(11);
  expect(await runWorld(plan)).toEqual(await runWorld(plan));
});

test('a fleet has latest values that are records', async () => {
  let records = 0;
  for (let seed = 1; seed <= 12; seed += 1) {
    const plan = { ...planOf(seed), hasFleet: true, faults: [] };
    const world = await runWorld(plan);
    expect(world.faults).toEqual([]);
    records += world.records;
  }
  expect(records).toBeGreaterThan(1_000);
});

test('a store that forgets rows is noticed, and the faults that do not matter are left out', async () => {
  const lie = { at: 700, kind: 'lying store', seed: 1 } as const;
  const others = [300, 500, 900].map((at) => ({ at, kind: 'kill', seed: at }) as const);
  const plan: Plan = {
    seed: 5,
    hosts: 1,
    workers: 2,
    ack: 'journal',
    hasRedis: false,
    busMsMax: 1,
    skewMsMax: 0,
    sendMs: 2_000,
    faults: [...others, lie],
  };
  expect((await runWorld(plan)).faults.join('\n')).toMatch(/was acknowledged and is lost/);
  expect((await shrink(plan)).faults).toEqual([lie]);
});

test('a bus that loses messages without a gap is noticed', async () => {
  const lie = { at: 60, kind: 'lying bus', seed: 1 } as const;
  const size = { seed: 5, hosts: 2, workers: 2, hasRedis: true, busMsMax: 1 };
  const plan: Plan = { ...size, ack: 'journal', skewMsMax: 0, sendMs: 2_000, faults: [lie] };
  expect((await runWorld(plan)).faults.join('\n')).toMatch(/command \d+ of device \d+ after all faults: unreachable/);
  expect((await runWorld({ ...plan, faults: [] })).faults).toEqual([]);
});

test.each([
  ['forgetful', /is not subscribed to \S+ at the Redis|is subscribed to \S+ at the Redis only/],
  ['unordered', /commands that waited came as/],
] as const)('a bus that is %s is noticed', async (word, expected) => {
  const lie = { at: 60, kind: `${word} bus`, seed: 1 } as const;
  const size = { seed: 5, hosts: 2, workers: 2, hasRedis: true, busMsMax: 1 };
  const plan: Plan = { ...size, ack: 'journal', skewMsMax: 0, sendMs: 2_000, faults: [lie] };
  expect((await runWorld(plan)).faults.join('\n')).toMatch(expected);
});

test('a move of buckets that waits for no process is noticed', async () => {
  const lie = { at: 0, kind: 'lying database', seed: 1 } as const;
  const size = { seed: 4, hosts: 1, workers: 3, hasRedis: false, busMsMax: 1, shards: 2 };
  const plan: Plan = { ...size, ack: 'journal', skewMsMax: 0, sendMs: 2_500, faults: [lie] };
  expect((await runWorld(plan)).faults.join('\n')).toMatch(/was acknowledged and is lost/);
  expect((await runWorld({ ...plan, faults: [] })).faults).toEqual([]);
});

async function reportOf(plan: Plan): Promise<string> {
  const least = await shrink(plan);
  const { faults, events } = await runWorld(least);
  return [JSON.stringify(least), ...faults.slice(0, 10), ...events].join('\n');
}
