/** Which deletes are carried out again for frames that were stored late, also while PostgreSQL does not answer. */
import { expect, test } from 'vitest';
import { systemClock } from '../base/clock.ts';
import { createLog } from '../base/log.ts';
import { orderMs } from '../ingest/order-number.ts';
import type { ShipUnit } from '../journal/journal.ts';
import { keyOf } from '../telemetry/keys.ts';
import { Rows } from '../telemetry/rows.ts';
import { type AheadFrame, copyMsMin, DeletesAgain, type ReopenDeletes } from './deletes-again.ts';

const log = createLog('fatal', 'test');
const now = systemClock.now();
const orderAt = (ms: number) => BigInt(Math.floor(ms)) << 20n;

type Frame = Pick<ShipUnit, 'orders' | 'payloads'>;

/** A frame with a row of each device. */
function frame(ms: number, devices: number[]): Frame {
  const rows = new Rows();
  for (const device of devices) {
    rows.addLong(keyOf('k')!, 1);
    rows.endRecord(device, now);
  }
  const order = orderAt(ms);
  return { orders: [order], payloads: [Buffer.concat(rows.encode({ order, micros: 0, firstPlace: 0 }))] };
}

/** Notes the calls; each call fails while `failures` is above 0. */
function noting(state: { failures: number } = { failures: 0 }, ackMsMax = 10_000) {
  const calls: [readonly number[] | undefined, bigint][] = [];
  const aheads: AheadFrame[] = [];
  const reopen: ReopenDeletes = async (devices, order, ahead) => {
    if (state.failures > 0) {
      state.failures -= 1;
      throw new Error('not now');
    }
    calls.push([devices, order]);
    aheads.push(...ahead);
  };
  const repeating = new DeletesAgain({ reopen, clock: { now: () => now }, log, ackMsMax, devicesMax: 3 });
  return { calls, aheads, again: stores(repeating) };
}

/** The servers took frames when they were made, unless `acceptedMs` says otherwise. */
function stores(repeating: DeletesAgain) {
  const stored = (unit: Frame, acceptedMs = unit.orders.map(orderMs)) => repeating.stored(unit, acceptedMs);
  return { stored, close: () => repeating.close() };
}

test('frames that are stored soon after they were made cost nothing', async () => {
  const { calls, again } = noting();
  await again.stored(frame(now - copyMsMin + 100, [1]));
  await again.close();
  expect(calls).toEqual([]);
});

test('a frame that was stored after the deadline of its acknowledgement counts as late', async () => {
  const { calls, again } = noting(undefined, 500);
  await again.stored(frame(now - 600, [1]));
  expect(calls).toEqual([[[1], orderAt(now - 600)]]);
});

test('the devices of frames that were stored late are named once, with the lowest order', async () => {
  const { calls, again } = noting();
  const [older, old, young] = [frame(now - 60_000, [7, 8]), frame(now - 5_000, [8, 9]), frame(now, [10])];
  const all = [old, older, young];
  await again.stored({ orders: all.flatMap((f) => f.orders), payloads: all.flatMap((f) => f.payloads) });
  expect(calls).toEqual([[[8, 9, 7], orderAt(now - 60_000)]]);
});

test('an order that is ahead of the clock counts as old, and bytes that are no block name no device', async () => {
  const { calls, again } = noting();
  const ahead = frame(now + 600_000, [3]);
  const noise = { orders: [orderAt(now - 9_000)], payloads: [Buffer.alloc(50, 0xff)] };
  await again.stored({ orders: [...ahead.orders, ...noise.orders], payloads: [...ahead.payloads, ...noise.payloads] });
  expect(calls).toEqual([[[3], orderAt(now - 9_000)]]);
});

test('of frames that the servers took before their orders, the last one of each second is named', async () => {
  const state = { failures: 1 };
  const { aheads, again } = noting(state);
  const accepted = Math.floor(now / 1_000) * 1_000 - 60_000;
  // The first one is stored when its order has come.
  const orders = [now, now + 5_000, now + 600_000].map(Math.floor);
  const frames = orders.map((ms) => frame(ms, [1]));
  for (const [i, each] of frames.entries()) await again.stored(each, [accepted + i * 600]);
  await again.close();
  expect(aheads.map(({ order, accepted }) => [orderMs(order), orderMs(accepted)])).toEqual([
    [orders[1], accepted + 600],
    [orders[2], accepted + 1_200],
  ]);
});

test('what PostgreSQL did not take is kept, and a stop tries once more', async () => {
  const { calls, again } = noting({ failures: 1 });
  await again.stored(frame(now - 5_000, [1]));
  await again.stored(frame(now - 9_000, [2]));
  expect(calls).toEqual([]);
  await again.close();
  expect(calls).toEqual([[[1, 2], orderAt(now - 9_000)]]);
});

test('a unit is confirmed without PostgreSQL when that does not answer', async () => {
  const reopen = () => new Promise<void>(() => {});
  const again = stores(new DeletesAgain({ reopen, clock: { now: () => now }, log, ackMsMax: 10_000 }));
  await again.stored(frame(now - 5_000, [1]));
});

test('above a cap, the deletes of all devices are looked for', async () => {
  const { calls, again } = noting();
  await again.stored(frame(now - 5_000, [1, 2, 3, 4]));
  expect(calls).toEqual([[undefined, orderAt(now - 5_000)]]);
});

test('units that are stored while a statement runs share the next one, and each waits for its own', async () => {
  const calls: { devices: readonly number[]; end: () => void }[] = [];
  const reopen = (devices: readonly number[] | undefined) =>
    new Promise<void>((end) => calls.push({ devices: devices!, end }));
  const again = stores(new DeletesAgain({ reopen, clock: { now: () => now }, log, ackMsMax: 10_000 }));
  const ended: number[] = [];
  for (const device of [1, 2, 3]) {
    void again.stored(frame(now - 5_000, [device]))!.then(() => ended.push(device));
  }
  const turn = () => new Promise((resolve) => setImmediate(resolve));
  calls[0]!.end();
  await turn();
  expect([calls.map(({ devices }) => devices), ended]).toEqual([[[1], [2, 3]], [1]]);
  calls[1]!.end();
  await turn();
  expect(ended).toEqual([1, 2, 3]);
  await again.close();
});
