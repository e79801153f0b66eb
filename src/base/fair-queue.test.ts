import { expect, test } from 'vitest';
import { Random } from '../../test/harness/random.ts';
import { FairQueue } from './fair-queue.ts';

/** Pushes items named `tenant/caller/n`; returns the refused ones. */
function pushAll(queue: FairQueue<string>, items: string[]): (string | undefined)[] {
  return items.map((item) => {
    const [tenant = '', caller = ''] = item.split('/');
    return queue.push({ tenant, caller }, item);
  });
}

function drain(queue: FairQueue<string>): string[] {
  const items: string[] = [];
  for (let item = queue.shift(); item !== undefined; item = queue.shift()) items.push(item);
  return items;
}

test('tenants take turns, and the callers of each tenant among themselves', () => {
  const queue = new FairQueue<string>(10);
  pushAll(queue, ['a/x/1', 'a/x/2', 'a/x/3', 'a/y/1', 'b/z/1', 'b/z/2']);
  expect(drain(queue)).toEqual(['a/x/1', 'b/z/1', 'a/y/1', 'b/z/2', 'a/x/2', 'a/x/3']);
  expect(queue.length).toBe(0);
});

test('a full queue makes room for an owner that has less in it, and for no other', () => {
  const queue = new FairQueue<string>(4);
  pushAll(queue, ['a/x/1', 'a/x/2', 'a/x/3', 'a/y/1']);
  expect(pushAll(queue, ['a/x/4', 'a/y/2', 'b/z/1', 'b/z/2', 'b/z/3'])).toEqual([
    'a/x/4',
    'a/x/3',
    'a/x/2',
    'a/y/2',
    'b/z/3',
  ]);
  expect(drain(queue)).toEqual(['a/x/1', 'b/z/1', 'a/y/1', 'b/z/2']);
});

test('a caller finds room beside a caller of its own tenant, though another tenant has more', () => {
  const queue = new FairQueue<string>(9);
  pushAll(queue, ['b/z/1', 'b/z/2', 'b/z/3', 'b/z/4', 'b/z/5', 'a/x/1', 'a/x/2', 'a/x/3', 'a/x/4']);
  expect(pushAll(queue, ['a/y/1'])).toEqual(['a/x/4']);
});

test('what may not go yet keeps its place; what was removed is gone', () => {
  const queue = new FairQueue<string>(4);
  pushAll(queue, ['a/x/1', 'a/y/1', 'b/z/1']);
  expect(
    queue.shift(
      () => true,
      ({ caller }) => caller === 'y',
    ),
  ).toBe('a/y/1');
  expect(queue.shift((tenant) => tenant === 'c')).toBeUndefined();
  expect(queue.remove({ tenant: 'b', caller: 'z' }, 'b/z/1')).toBe(true);
  expect(queue.remove({ tenant: 'b', caller: 'z' }, 'b/z/1')).toBe(false);
  expect(drain(queue)).toEqual(['a/x/1']);
});

test('without a place nothing waits', () => {
  const queue = new FairQueue<string>(0);
  expect(pushAll(queue, ['a/x/1'])).toEqual(['a/x/1']);
});

test('turns are equal in what items cost: an expensive item uses up later turns of its owner', () => {
  const queue = new FairQueue<string>(100, 10);
  for (const n of [1, 2, 3]) queue.push({ tenant: 'a', caller: '' }, `a${n}`, 30);
  for (let n = 1; n <= 40; n += 1) queue.push({ tenant: 'b', caller: '' }, `b${n}`, 1);
  const order = drain(queue);
  expect(order.slice(0, 2)).toEqual(['a1', 'b1']);
  // Three turns of ten for each item of thirty.
  expect(order.indexOf('a2')).toBe(31);
  expect(order).toHaveLength(43);
  expect(order.filter((item) => item.startsWith('b'))).toEqual(Array.from({ length: 40 }, (_, n) => `b${n + 1}`));
});

test('a line of many items is taken in order, from both ends and from its middle', () => {
  const queue = new FairQueue<string>(100);
  const owner = { tenant: 'a', caller: 'x' };
  pushAll(
    queue,
    Array.from({ length: 100 }, (_, n) => `a/x/${n}`),
  );
  for (let n = 0; n < 70; n += 1) expect(queue.shift()).toBe(`a/x/${n}`);
  expect(queue.remove(owner, 'a/x/69')).toBe(false);
  expect(queue.remove(owner, 'a/x/80')).toBe(true);
  pushAll(
    queue,
    Array.from({ length: 71 }, (_, n) => `a/x/${n + 100}`),
  );
  expect(queue.length).toBe(100);
  expect(pushAll(queue, ['b/z/1'])).toEqual(['a/x/170']);
  const left = Array.from({ length: 100 }, (_, n) => n + 70).filter((n) => n !== 80);
  expect(drain(queue).filter((item) => item !== 'b/z/1')).toEqual(left.map((n) => `a/x/${n}`));
});

test('a full queue takes room from the largest caller of the largest tenant, whatever came and went before', () => {
  const queue = new FairQueue<string>(30);
  const sizes = new Map<string, number>();
  const add = (item: string, change: number) => {
    const [tenant = '', caller = ''] = item.split('/');
    for (const name of [tenant, `${tenant}/${caller}`]) sizes.set(name, (sizes.get(name) ?? 0) + change);
  };
  const most = (prefix: RegExp) => Math.max(0, ...[...sizes].flatMap(([name, n]) => (prefix.test(name) ? [n] : [])));
  const random = new Random(7);
  for (let n = 0; n < 20_000; n += 1) {
    if (random.below(3) === 0 && n % 300 > 100) {
      const taken = queue.shift();
      if (taken !== undefined) add(taken, -1);
      continue;
    }
    const [tenant, caller] = [random.pick(['a', 'a', 'a', 'b', 'c']), random.pick(['x', 'x', 'y', 'z'])];
    const item = `${tenant}/${caller}/${n}`;
    const refused = queue.push({ tenant, caller }, item);
    if (refused !== undefined && refused !== item) {
      const [of = '', by = ''] = refused.split('/');
      expect(sizes.get(of) === most(/^.$/) || of === tenant).toBe(true);
      expect(sizes.get(`${of}/${by}`)).toBe(most(new RegExp(`^${of}/`)));
      add(refused, -1);
    }
    if (refused === item) {
      expect(most(/^.$/)).toBeLessThanOrEqual((sizes.get(tenant) ?? 0) + 1);
      expect(most(new RegExp(`^${tenant}/`))).toBeLessThanOrEqual((sizes.get(`${tenant}/${caller}`) ?? 0) + 1);
    } else {
      add(item, 1);
    }
  }
});
