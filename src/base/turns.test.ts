import { expect, test } from 'vitest';
import { unavailable } from './errors.ts';
import { Turns } from './turns.ts';

/** Runs work that ends when the test ends it. */
function start(atOnceMax: number, waitingMax: number) {
  const turns = new Turns({ atOnceMax, waitingMax, refusal: () => unavailable('rest_calls', 'full') });
  const begun: string[] = [];
  const ends: (() => void)[] = [];
  const refused: string[] = [];
  const f = (name: string, tenant: string, customer: string | null = null) => {
    const work = () =>
      new Promise<void>((resolve) => {
        begun.push(name);
        ends.push(resolve);
      });
    turns.run(tenant, customer, work).catch(() => refused.push(name));
  };
  const endOne = async () => {
    ends.shift()!();
    await new Promise((resolve) => setImmediate(resolve));
  };
  return { turns, begun, refused, f, endOne };
}

test('one tenant leaves a tenth of the places, and a place that is free is given at once', async () => {
  const { begun, f, turns, endOne } = start(10, 100);
  for (let n = 0; n < 20; n += 1) f(`a${n}`, 'a');
  expect([begun.length, turns.waiting]).toEqual([9, 11]);
  f('b', 'b');
  expect(begun.at(-1)).toBe('b');
  for (let n = 0; n < 21; n += 1) await endOne();
  expect([begun.length, turns.waiting]).toEqual([21, 0]);
});

test('tenants that wait take turns, however many calls of one wait', async () => {
  const { begun, f, endOne } = start(1, 100);
  for (let n = 0; n < 5; n += 1) f(`a${n}`, 'a');
  for (let n = 0; n < 2; n += 1) f(`b${n}`, 'b');
  for (let n = 0; n < 7; n += 1) await endOne();
  expect(begun).toEqual(['a0', 'a1', 'b0', 'a2', 'b1', 'a3', 'a4']);
});

test('a full queue refuses the owner that has most in it', async () => {
  const { begun, refused, f, endOne } = start(1, 3);
  for (let n = 0; n < 5; n += 1) f(`a${n}`, 'a');
  f('b', 'b');
  await endOne();
  await endOne();
  expect(refused).toEqual(['a4', 'a3']);
  expect(begun).toContain('b');
});

test('work that fails gives its place back', async () => {
  const { turns } = start(1, 1);
  await expect(turns.run('a', null, () => Promise.reject(new Error('bad')))).rejects.toThrow('bad');
  expect(await turns.run('a', null, async () => 'good')).toBe('good');
});
