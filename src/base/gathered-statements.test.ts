/** The number of statements that identify many callers, and the guarantees for each caller. */
import { expect, test } from 'vitest';
import { byPlace, GatheredStatements } from './gathered-statements.ts';
import { limits } from './limits.ts';

function reads() {
  const statements: { keys: number[]; answer(rows: [number, string][]): void; fail(error: Error): void }[] = [];
  const gathered = new GatheredStatements<number, string>((keys) => {
    return new Promise((resolve, reject) => {
      statements.push({ keys, answer: (rows) => resolve(new Map(rows)), fail: reject });
    });
  });
  const next = async (n: number) => {
    while (statements.length <= n) await new Promise((resolve) => setImmediate(resolve));
    return statements[n]!;
  };
  return { statements, next, find: (key: number, asker?: string) => gathered.ask(String(key), key, asker) };
}

test('callers of one turn share a statement, and equal keys one row', async () => {
  const { statements, next, find } = reads();
  const found = Promise.all([find(7), find(8), find(7), find(9)]);
  const statement = await next(0);
  expect(statement.keys).toEqual([7, 8, 9]);
  statement.answer([
    [0, 'seven'],
    [2, 'nine'],
  ]);
  expect(await found).toEqual(['seven', undefined, 'seven', 'nine']);
  expect(statements).toHaveLength(1);
});

test('a caller gets no answer of a statement that began before it asked', async () => {
  const { next, find } = reads();
  const before = find(7);
  const first = await next(0);
  const after = find(7);
  first.answer([[0, 'old']]);
  (await next(1)).answer([]);
  expect(await Promise.all([before, after])).toEqual(['old', undefined]);
});

test('a flood takes few statements, one at a time, and more than the queue holds is refused', async () => {
  const { statements, next, find } = reads();
  const callers = Array.from({ length: limits.callerReadsQueueMax }, (_, n) => find(n));
  await expect(find(-1)).rejects.toMatchObject({ status: 503, reason: 'rest_calls' });
  for (let n = 0; n < limits.callerReadsQueueMax / limits.callerReadsBatchMax; n += 1) {
    const { keys, answer } = await next(n);
    expect(statements).toHaveLength(n + 1);
    answer(keys.map((key, place) => [place, String(key)]));
  }
  expect(await Promise.all(callers)).toEqual(Array.from(callers, (_, n) => String(n)));
});

test('an asker that fills the queue delays and refuses only itself', async () => {
  const { next, find } = reads();
  const first = find(-1, 'flood');
  const statement = await next(0);
  const { callerReadsQueueMax: queueMax, callerReadsBatchMax: batchMax } = limits;
  const flood = Array.from({ length: queueMax }, (_, n) => find(n, 'flood').catch(({ reason }) => reason));
  const other = find(queueMax, 'other');
  // The newest question of the flood made room for the other asker.
  expect(await flood.at(-1)).toBe('rest_calls');
  statement.answer([]);
  const { keys, answer } = await next(1);
  expect(keys).toHaveLength(batchMax);
  const place = keys.indexOf(queueMax);
  expect(place).toBeGreaterThanOrEqual(0);
  answer([[place, 'other']]);
  expect(await Promise.all([first, other])).toEqual([undefined, 'other']);
});

test('a statement that fails fails its own callers', async () => {
  const { next, find } = reads();
  const failing = find(1);
  (await next(0)).fail(new Error('away'));
  await expect(failing).rejects.toThrow('away');
  const fine = find(1);
  (await next(1)).answer([[0, 'one']]);
  expect(await fine).toBe('one');
});

test('places count from 1', () => {
  expect(byPlace([{ place: 2, name: 'b' }])).toEqual(new Map([[1, { name: 'b' }]]));
});
