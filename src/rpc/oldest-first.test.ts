import { expect, test } from 'vitest';
import { Random } from '../../test/harness/random.ts';
import { ProcessTime, VirtualTime } from '../../test/world/virtual-time.ts';
import { limits } from '../base/limits.ts';
import { OldestFirst } from './oldest-first.ts';
import type { OwnerMessage } from './owner-messages.ts';
import type { Command } from './waiters.ts';

const device = 7;
/** The wait with a session, when the owner of the older commands has died. */
const askedMs = 2 * limits.rpcElderWaitMs;
const asksMax = limits.rpcElderMsMax / limits.rpcElderWaitMs;

/** The announcement of another owner. */
const heldOf = (id: number) => ({ kind: 'held', id, isNew: false }) as const;

/** An owner with the commands of these ids, which an open session takes as soon as none holds them up. */
function ownerOf(...ids: number[]) {
  const sent: OwnerMessage[] = [];
  const time = new VirtualTime(new Random(1));
  const queued = ids.map((id) => ({ device, id }) as Command);
  const taken: number[] = [];
  const order: OldestFirst = new OldestFirst({
    scheduler: new ProcessTime(time, 0),
    queued: () => queued,
    send: (_, message) => void sent.push(message),
    onFree: () => offer(),
  });
  let isClosed = false;
  const offer = () => {
    while (queued[0] && !order.mustWait(queued[0])) {
      if (isClosed) return order.offered(device, false);
      taken.push(queued.shift()!.id);
      order.offered(device, true);
    }
  };
  order.begin(device);
  const closePolls = (closed = true) => {
    isClosed = closed;
  };
  return { order, taken, sent, offer, closePolls, pass: (ms: number) => time.run(() => false, time.passed + ms) };
}

test('after the wait a command goes before older ones of others, and the next one waits for those behind it', async () => {
  const { order, taken, offer, pass } = ownerOf(2, 4);
  for (const id of [1, 3]) order.held(device, heldOf(id));
  offer();
  await pass(limits.rpcElderWaitMs - 1);
  expect(taken).toEqual([]);
  await pass(2);
  expect(taken).toEqual([2]);
  order.gone(device, 3);
  expect(taken).toEqual([2, 4]);
});

test('the wait begins again when an older command goes, and when a session opens', async () => {
  const { order, taken, offer, pass } = ownerOf(9);
  for (const id of [1, 2]) order.held(device, heldOf(id));
  offer();
  await pass(limits.rpcElderWaitMs - 1);
  order.gone(device, 1);
  await pass(limits.rpcElderWaitMs - 1);
  order.opened(device);
  offer();
  await pass(askedMs - 1);
  expect(taken).toEqual([]);
  await pass(2);
  expect(taken).toEqual([9]);
});

test('when a session is found, a command that was to pass over older ones lets them go first, for one more wait', async () => {
  const { order, taken, offer, pass } = ownerOf(9);
  const command = { device, id: 9 } as Command;
  order.held(device, heldOf(1));
  expect(order.mustWait(command)).toBe(true);
  await pass(limits.rpcElderWaitMs - 1);
  expect(order.yields(command)).toBe(true);
  order.offered(device, false);
  offer();
  await pass(askedMs - 1);
  expect(taken).toEqual([]);
  await pass(2);
  expect(taken).toEqual([9]);
  expect(order.yields(command)).toBe(false);
});

test('sessions that open one after another restart no wait, so a dead owner holds up no device that polls', async () => {
  const { order, taken, offer, pass } = ownerOf(9);
  order.held(device, heldOf(1));
  offer();
  for (let ms = 0; ms < limits.rpcElderWaitMs + askedMs; ms += 50) {
    await pass(50);
    order.opened(device);
    offer();
  }
  expect(taken).toEqual([9]);
});

test('a command that no session took after the wait goes first when the next poll opens', async () => {
  const { order, taken, offer, pass, closePolls } = ownerOf(9);
  order.held(device, heldOf(1));
  offer();
  order.opened(device);
  closePolls();
  await pass(askedMs + 1);
  expect(taken).toEqual([]);
  closePolls(false);
  order.opened(device);
  offer();
  expect(taken).toEqual([9]);
});

test('a younger command of another owner that goes does not restart the wait', async () => {
  const { order, taken, offer, pass } = ownerOf(5);
  for (const id of [1, 7]) order.held(device, heldOf(id));
  offer();
  await pass(limits.rpcElderWaitMs - 1);
  order.gone(device, 7);
  await pass(2);
  expect(taken).toEqual([5]);
});

test('an owner that is asked and lives has more time; its older commands go first, those of a dead owner do not', async () => {
  const { order, taken, sent, offer, pass } = ownerOf(9);
  for (const id of [1, 2]) order.held(device, heldOf(id));
  order.opened(device);
  offer();
  for (let asks = 1; asks < asksMax; asks += 1) {
    await pass(limits.rpcElderWaitMs + 1);
    expect(sent).toEqual(Array.from({ length: asks }, () => ({ kind: 'held', id: 9, isNew: true, isAsking: true })));
    order.held(device, heldOf(2));
  }
  expect(taken).toEqual([]);
  order.gone(device, 2);
  expect(taken).toEqual([9]);
});

test('a living owner that delivers nothing is passed over at last', async () => {
  const { order, taken, offer, pass } = ownerOf(9);
  order.held(device, heldOf(1));
  order.opened(device);
  offer();
  for (let waits = 0; waits <= asksMax; waits += 1) {
    expect(taken).toEqual([]);
    await pass(limits.rpcElderWaitMs + 1);
    order.held(device, heldOf(1));
  }
  expect(taken).toEqual([9]);
});

test('an owner that is asked announces the older ones of its commands again', async () => {
  const { order, sent, offer, pass } = ownerOf(2, 4, 6);
  order.held(device, heldOf(1));
  offer();
  order.announceSoon(device);
  await pass(limits.rpcAnnounceMs + 1);
  sent.length = 0;
  order.held(device, { ...heldOf(5), isNew: true, isAsking: true });
  expect(sent).toEqual([2, 4].map(heldOf));
});
