import { expect, test } from 'vitest';
import { Slots } from './slots.ts';

const here = () => new AbortController().signal;
const full = expect.objectContaining({ code: 202 });

test('queries leave the reserve to inserts', async () => {
  const slots = new Slots(3, 2, 10, 20);
  const first = await slots.take('query', here());
  await slots.take('query', here());
  await expect(slots.take('query', here())).rejects.toEqual(full);
  const insert = await slots.take('insert', here());
  expect(slots.running).toBe(3);
  await expect(slots.take('insert', here())).rejects.toEqual(full);
  insert();
  await expect(slots.take('query', here())).rejects.toEqual(full);
  first();
  await slots.take('query', here());
});

test('a released slot goes to the longest waiter', async () => {
  const slots = new Slots(2, 1, 10, 1000);
  const busy = await slots.take('query', here());
  const order: string[] = [];
  const waiters = ['a', 'b'].map(async (name) => {
    const giveBack = await slots.take('query', here());
    order.push(name);
    giveBack();
  });
  busy();
  busy();
  await Promise.all(waiters);
  expect(order).toEqual(['a', 'b']);
  expect(slots.running).toBe(0);
});

test('waiting is bounded in number and in time, and ends when the client leaves', async () => {
  const slots = new Slots(2, 1, 1, 1000);
  await slots.take('query', here());
  const gone = new AbortController();
  const waiting = slots.take('query', gone.signal);
  await expect(slots.take('query', here())).rejects.toEqual(full);
  gone.abort();
  await expect(waiting).rejects.toEqual(full);
});

test('patient inserts take half of the slots, and leave one to other inserts beside any queries', async () => {
  const slots = new Slots(4, 3, 10, 20);
  const patient = await slots.take('patient insert', here());
  await slots.take('patient insert', here());
  await expect(slots.take('patient insert', here())).rejects.toEqual(full);
  await slots.take('query', here());
  await expect(slots.take('query', here())).rejects.toEqual(full);
  await slots.take('insert', here());
  expect(slots.running).toBe(4);
  patient();
  await slots.take('insert', here());
  await expect(slots.take('patient insert', here())).rejects.toEqual(full);
});

test('one owner leaves a slot of queries to others, and waiters take turns by what their owners run', async () => {
  const slots = new Slots(8, 3, 10, 60_000);
  const gone = new AbortController();
  const order: string[] = [];
  const take = async (name: string, owner?: string) => {
    const giveBack = await slots.take('query', gone.signal, owner);
    order.push(name);
    return giveBack;
  };
  const [first] = await Promise.all([take('a1', 'a'), take('a2', 'a')]);
  const waiting = [take('a3', 'a'), take('a4', 'a')];
  expect(slots.running).toBe(2);
  // The third slot is free, and another owner finds it.
  await take('b1', 'b');
  expect(slots.running).toBe(3);
  const [other, own] = [take('c1', 'c'), take('own')];
  waiting.push(take('b2', 'b'));
  first!();
  (await other)();
  // Millrace itself has no share, and comes first like an owner that runs nothing.
  await own;
  expect(order).toEqual(['a1', 'a2', 'b1', 'c1', 'own']);
  gone.abort();
  const left = await Promise.allSettled(waiting);
  expect(left.map(({ status }) => status)).toEqual(['rejected', 'rejected', 'rejected']);
});
