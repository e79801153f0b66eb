import { setImmediate as turn } from 'node:timers/promises';
import { afterEach, expect, it, vi } from 'vitest';
import { steadySleep, useSteadyClock } from '../../test/harness/steady-clock.ts';
import { systemClock as clock } from '../base/clock.ts';
import { limits } from '../base/limits.ts';
import { createLog } from '../base/log.ts';
import { Metrics } from '../base/metrics/metrics.ts';
import { busCounters } from '../bus/bus.ts';
import { IpcBus } from '../bus/ipc.ts';
import { BusHub } from '../bus/ipc-primary.ts';
import { portPair } from '../bus/port.ts';
import { openChannels } from '../downlink/device-channels.ts';
import { Downlink } from '../downlink/downlink.ts';
import type { Queries } from '../postgres/client.ts';
import { AttributeUpdates } from './followers.ts';
import type { Update } from './update.ts';

useSteadyClock();

const log = createLog('error', 'test');
const device = 7;
let downlink: Downlink;
let updates: AttributeUpdates;
/**
 * A stand-in for the store: the newest version of the device (`head`), the number of reads (`asked`), and a promise for
 * which each answer waits (`delivery`).
 */
let head = { version: 0, changesSeen: 0, deletionsSeen: 0 };
let asked = 0;
/** The number of polls of versions that have begun. */
let polls = 0;
let delivery: Promise<void> | undefined;
/** The result of the next poll of versions. */
let heads: { device: number; version: number }[] = [];

const postgres: Queries = {
  async query<Row>(text: string): Promise<Row[]> {
    await turn();
    if (text.includes('pg_current_snapshot')) {
      polls += 1;
      return [{ snapshot: '1:1:' }] as Row[];
    }
    if (text.includes('"headVersion"'))
      return [{ device, headVersion: head.version, key: 'k', kind: 2, value: '1' }] as Row[];
    if (text.includes('transaction_id >=')) return heads.splice(0) as Row[];
    if (!text.includes('"changesSeen"')) return [];
    asked += 1;
    const row = { device, ...head, changesOffered: null, deletionsOffered: null, offeredMs: 0, repeated: false };
    await delivery;
    return [row] as Row[];
  },
};

async function start(lossFree: boolean): Promise<void> {
  head = { version: 0, changesSeen: 0, deletionsSeen: 0 };
  asked = 0;
  delivery = undefined;
  const [ours, theirs] = portPair();
  new BusHub(new Metrics()).attach(theirs);
  const bus = new IpcBus(ours, busCounters(new Metrics()));
  downlink = new Downlink({ bus, channels: openChannels(bus), log, metrics: new Metrics() });
  await downlink.start();
  updates = new AttributeUpdates({ postgres, downlink, clock, log, metrics: new Metrics(), lossFree });
  polls = 0;
  updates.start();
  if (lossFree) await vi.waitFor(() => expect(polls).toBe(1), 20_000);
  await steadySleep(20);
}

afterEach(async () => {
  await updates.stop();
  downlink.stop();
});

function follow() {
  const arrived: Update[] = [];
  const following = updates.follow(
    { number: device, tenantId: 'mill', customerId: null },
    {
      update: (update) => void arrived.push(update),
      failed: () => {},
      close: () => {},
    },
  );
  return { arrived, following };
}

/** Resolves when the store has answered. */
async function isFollowing(): Promise<void> {
  await vi.waitFor(() => expect(asked).toBeGreaterThan(0), 20_000);
  await steadySleep(20);
}

function change(version: number): void {
  head.version = version;
  downlink.send(device, 'attributes', { kind: 'changes', version, json: `{"k":${version}}` });
}

it('sends a change that follows the known version without reading the store', async () => {
  await start(true);
  const { arrived } = follow();
  await isFollowing();
  const before = asked;
  change(1);
  change(2);
  expect(arrived.map(({ version }) => version)).toEqual([1, 2]);
  expect(asked).toBe(before);
});

it('reads the store when a version is missing, and sends no version twice', async () => {
  await start(true);
  const { arrived } = follow();
  await isFollowing();
  const before = asked;
  change(1);
  change(1);
  expect(arrived).toHaveLength(1);
  change(3);
  await vi.waitFor(() => expect(asked).toBeGreaterThan(before), 20_000);
});

it('waits for the bus before it reads a version that the store has: later changes need no confirmation', async () => {
  await start(true);
  const { arrived } = follow();
  await isFollowing();
  const before = asked;
  head.version = 1;
  heads = [{ device, version: 1 }];
  await vi.waitFor(() => expect(heads).toEqual([]), 20_000);
  await steadySleep(20);
  change(1);
  await steadySleep(limits.updateBusMs);
  change(2);
  expect(arrived.map(({ version }) => version)).toEqual([1, 2]);
  expect(asked).toBe(before);
});

it('reads a version that the bus has lost', async () => {
  await start(true);
  const { arrived } = follow();
  await isFollowing();
  head.version = 1;
  heads = [{ device, version: 1 }];
  await vi.waitFor(() => expect(arrived.map(({ version }) => version)).toEqual([1]), 20_000);
});

it('reads the store once at a time, also when a follower confirms an update at once', async () => {
  await start(true);
  head.version = 1;
  let deliver = () => {};
  const arrived: number[] = [];
  const following = updates.follow(
    { number: device, tenantId: 'mill', customerId: null },
    {
      update: (update) => {
        arrived.push(update.version);
        if (update.version > 1) return;
        head = { version: 2, changesSeen: 1, deletionsSeen: 1 };
        delivery = new Promise((resolve) => {
          deliver = resolve;
        });
        following.confirmed(update);
      },
      failed: () => {},
      close: () => {},
    },
  );
  await vi.waitFor(() => expect(arrived).toEqual([1]), 20_000);
  await steadySleep(20);
  following.confirmed({ kind: 'changes', version: 0, json: '{}' });
  await steadySleep(20);
  deliver();
  await vi.waitFor(() => expect(arrived.length).toBeGreaterThan(1), 20_000);
  await steadySleep(100);
  expect(arrived).toEqual([1, 2]);
});

it('reads the store also for a poll that ended at once, so that the next one receives later changes', async () => {
  await start(true);
  follow().following.leave();
  await vi.waitFor(() => expect(asked).toBe(1), 20_000);
});

it('asks nothing of the store for a device that is known to know everything', async () => {
  await start(true);
  follow().following.leave();
  const first = follow();
  await isFollowing();
  first.following.leave();
  const before = asked;
  follow();
  await steadySleep(30);
  expect(asked).toBe(before);
});

it('sends a change that arrives before an older answer of the store', async () => {
  await start(true);
  let deliver = () => {};
  delivery = new Promise((resolve) => {
    deliver = resolve;
  });
  const { arrived } = follow();
  await vi.waitFor(() => expect(asked).toBe(1), 20_000);
  change(1);
  deliver();
  await vi.waitFor(() => expect(arrived.map(({ version }) => version)).toEqual([1]), 20_000);
});

it('switched off, sends only changes made while a listener is there, and never reads the store', async () => {
  await start(false);
  change(5);
  const { arrived, following } = follow();
  await steadySleep(30);
  change(9);
  following.leave();
  change(10);
  expect(arrived.map(({ version }) => version)).toEqual([9]);
  expect(asked).toBe(0);
});
