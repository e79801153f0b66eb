/**
 * Three hundred worlds: hosts and workers of the real journal, ingest and shipping in virtual time, under faults that a
 * seed chooses. What was acknowledged is stored once, in order, with the right latest value, and no good row is in
 * quarantine. `npm run bench -- world` runs more seeds.
 */
import { expect, test } from 'vitest';
import { type Plan, planOf, runWorld, shrink } from './world.ts';

const seeds = 300;
const together = 50;

for (let first = 1; first <= seeds; first += together) {
  test(`the worlds of seeds ${first} to ${first + together - 1} keep every promise`, async () => {
    for (let seed = first; seed < first + together; seed += 1) {
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

test('a store that forgets rows is noticed, and the faults that do not matter are left out', async () => {
  const lie = { at: 700, kind: 'lying store', seed: 1 } as const;
  const others = [300, 500, 900].map((at) => ({ at, kind: 'kill', seed: at }) as const);
  const plan: Plan = {
    seed: 5,
    hosts: 1,
    workers: 2,
    ack: 'journal',
    skewMsMax: 0,
    sendMs: 2_000,
    faults: [...others, lie],
  };
  expect((await runWorld(plan)).faults.join('\n')).toMatch(/was acknowledged and is lost/);
  expect((await shrink(plan)).faults).toEqual([lie]);
});

async function reportOf(plan: Plan): Promise<string> {
  const least = await shrink(plan);
  const { faults, events } = await runWorld(least);
  return [JSON.stringify(least), ...faults.slice(0, 10), ...events].join('\n');
}
