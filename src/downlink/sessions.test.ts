import { setImmediate as turn } from 'node:timers/promises';
import { afterEach, beforeEach, describe, expect, it, vi } from 'vitest';
import { eventually } from '../../test/harness/api.ts';
import { deviceRow } from '../../test/harness/device-row.ts';
import { FragileBus } from '../../test/harness/fragile-bus.ts';
import { steadySleep, useSteadyClock } from '../../test/harness/steady-clock.ts';
import { limits } from '../base/limits.ts';
import { createLog } from '../base/log.ts';
import { Metrics } from '../base/metrics/metrics.ts';
import { busCounters, type Handler } from '../bus/bus.ts';
import { IpcBus } from '../bus/ipc.ts';
import { BusHub } from '../bus/ipc-primary.ts';
import { portPair } from '../bus/port.ts';
import { LocalDevices } from '../device/local-devices.ts';
import type { StoredDevice } from '../device/model/cached-device.ts';
import { openChannels } from './device-channels.ts';
import { type SessionEnd, Sessions } from './sessions.ts';

useSteadyClock();

const log = createLog('error', 'test');
const change = (number: number, deleted = false) => ({
  credentialsId: 'k',
  deviceId: `id-${number}`,
  deviceNumber: number,
  deleted,
});

let hub: BusHub;
let opened: { sessions: Sessions; bus: FragileBus }[];
let stored: Map<number, StoredDevice>;
let queries: number[][];
let isAway: boolean;

/** `subscribed`: a channel for each device, as over Redis, whose subscription becomes active with the promise. */
async function open(nowMs = () => Date.now(), subscribed?: Promise<void>) {
  const [ours, theirs] = portPair();
  hub.attach(theirs);
  const bus = new FragileBus(new IpcBus(ours, busCounters(new Metrics())));
  if (subscribed) {
    const subscribe = bus.subscribe.bind(bus);
    Object.assign(bus, {
      spansHosts: true,
      subscribe: async (channel: string, handler: Handler) => {
        await subscribed;
        return await subscribe(channel, handler);
      },
    });
  }
  const clock = { now: nowMs, monotonic: () => performance.now() };
  const devices = new LocalDevices();
  const events: string[] = [];
  const sessions = new Sessions({
    bus,
    channels: openChannels(bus).sessions,
    devices,
    lookUp: async (numbers) => {
      queries.push(numbers);
      if (isAway) throw new Error('away');
      return numbers.flatMap((number) => stored.get(number) ?? []);
    },
    onConnected: ({ number }) => events.push(`connected ${number}`),
    onDisconnected: ({ number }) => events.push(`disconnected ${number}`),
    clock,
    log,
    metrics: new Metrics(),
  });
  opened.push({ sessions, bus });
  return { sessions, bus, events, devices };
}

function owner() {
  const ends: SessionEnd[] = [];
  return { ends, sessionEnded: (reason: SessionEnd) => void ends.push(reason) };
}

async function settled(): Promise<void> {
  for (let i = 0; i < 30; i += 1) await turn();
}

beforeEach(() => {
  hub = new BusHub(new Metrics());
  opened = [];
  stored = new Map([1, 2, 3].map((number) => [number, { ...deviceRow(number), credentialsVersion: 1 }]));
  queries = [];
  isAway = false;
});

afterEach(async () => {
  for (const { sessions, bus } of opened) {
    await sessions.stop();
    await bus.close();
  }
});

describe('Sessions', () => {
  it('the newer session of a device wins on one worker, without a disconnect', async () => {
    const { sessions, events, devices } = await open();
    const [old, young] = [owner(), owner()];
    const first = sessions.open(deviceRow(1), old);
    const second = sessions.open(deviceRow(1), young);
    expect(old.ends).toEqual(['taken_over']);
    first.end();
    first.end();
    expect(events).toEqual(['connected 1', 'connected 1']);
    expect(devices.get(1)).toBe(second.device);
    second.end();
    expect(events.at(-1)).toBe('disconnected 1');
    expect(devices.size).toBe(0);
    expect(young.ends).toEqual([]);
  });

  it('the newer session wins across workers, without a disconnect', async () => {
    const [here, there] = [await open(), await open()];
    const [old, young] = [owner(), owner()];
    const first = here.sessions.open(deviceRow(1), old);
    await settled();
    there.sessions.open(deviceRow(1), young);
    await settled();
    expect([old.ends, young.ends]).toEqual([['taken_over'], []]);
    first.end();
    expect(here.events).toEqual(['connected 1']);
    expect(here.sessions.size).toBe(0);
  });

  it('the newer session wins even when its clock is late', async () => {
    const [here, there] = [await open(() => Date.now() + 3_600_000), await open()];
    const [old, young] = [owner(), owner()];
    here.sessions.open(deviceRow(1), old);
    await settled();
    there.sessions.open(deviceRow(1), young);
    await settled();
    expect([old.ends, young.ends]).toEqual([['taken_over'], []]);
  });

  it('of two that open at once exactly one stays, with any clocks', async () => {
    for (const [number, aheadMs] of [0, 5_000, -5_000].entries()) {
      const workers = await Promise.all([
        open(() => 1_000_000),
        open(() => 1_000_000 + aheadMs),
        open(() => 1_000_000),
      ]);
      const owners = workers.map(() => owner());
      for (const [i, { sessions }] of workers.entries()) sessions.open(deviceRow(number), owners[i]!);
      await settled();
      expect(owners.filter(({ ends }) => ends.length === 0)).toHaveLength(1);
      expect(workers.reduce((sum, { sessions }) => sum + sessions.size, 0)).toBe(1);
    }
  });

  it('two that opened the same device while the bus was unavailable find each other afterwards', async () => {
    const [here, there] = [await open(), await open()];
    there.bus.connected = false;
    const [old, young] = [owner(), owner()];
    here.sessions.open(deviceRow(1), old);
    await steadySleep(2);
    there.sessions.open(deviceRow(1), young);
    await settled();
    expect([old.ends, young.ends]).toEqual([[], []]);
    there.bus.restore();
    await eventually(() => old.ends.length === 1);
    await settled();
    expect([old.ends, young.ends]).toEqual([['taken_over'], []]);
  });

  it.each([
    ['equal clocks', 0],
    ['a clock an hour ahead', 3_600_000],
  ])('an older session that is announced late ends, and not the newer one: %s', async (_, aheadMs) => {
    let activate = () => {};
    const late = new Promise<void>((resolve) => {
      activate = resolve;
    });
    const [here, there] = [
      await open(() => Date.now(), late),
      await open(() => Date.now() + aheadMs, Promise.resolve()),
    ];
    const [old, young] = [owner(), owner()];
    here.sessions.open(deviceRow(1), old);
    await steadySleep(5);
    there.sessions.open(deviceRow(1), young);
    await eventually(() => there.bus.published === 1);
    await settled();
    await steadySleep(5);
    activate();
    await eventually(() => old.ends.length === 1);
    expect([old.ends, young.ends]).toEqual([['taken_over'], []]);
  });

  it('announces all that were opened in one turn in one message', async () => {
    const { sessions, bus } = await open();
    for (let number = 1; number <= 500; number += 1) sessions.open(deviceRow(number), owner());
    await settled();
    expect(bus.published).toBe(1);
  });

  it('of a lost message announces the open sessions again', async () => {
    const { sessions, bus } = await open();
    const messages: number[][] = [];
    await bus.subscribe('s0', (payload) => {
      const message = JSON.parse(payload.toString()) as { sessions: [device: number][] };
      messages.push(message.sessions.map(([device]) => device));
    });
    bus.connected = false;
    const all = [1, 2, 3].map((number) => sessions.open(deviceRow(number), owner()));
    await settled();
    all[1]!.end();
    bus.connected = true;
    await eventually(() => messages.length > 0, 2 * limits.sessionEchoMs);
    expect(messages).toEqual([[1, 3]]);
  });

  it('ends with the device, once, and counts one disconnect', async () => {
    const { sessions, events } = await open();
    const mine = owner();
    const session = sessions.open(deviceRow(1), mine, 1);
    sessions.changed(change(1, true));
    sessions.changed(change(1, true));
    session.end();
    expect(mine.ends).toEqual(['device_deleted']);
    expect(events).toEqual(['connected 1', 'disconnected 1']);
  });

  it('ends when its credentials changed, not when only its device was saved', async () => {
    const { sessions, events, devices } = await open();
    const mine = owner();
    sessions.open(deviceRow(1), mine, 1);
    stored.set(1, { ...deviceRow(1), version: 2, name: 'renamed', credentialsVersion: 1 });
    sessions.changed(change(1));
    await settled();
    expect(mine.ends).toEqual([]);
    expect(devices.get(1)!.name).toBe('renamed');
    stored.set(1, { ...deviceRow(1), version: 2, credentialsVersion: 2 });
    sessions.changed(change(1));
    await settled();
    expect(mine.ends).toEqual(['credentials_changed']);
    expect(events).toEqual(['connected 1', 'disconnected 1']);
  });

  it('of two sessions whose announcements were lost one ends, also while the bus has many gaps a second', async () => {
    const workers = [await open(), await open()];
    for (const { bus } of workers) bus.connected = false;
    for (const { sessions } of workers) {
      const session = sessions.open(deviceRow(1), { sessionEnded: () => session.end() });
    }
    // Sessions that opened later are repeated first.
    for (const { sessions } of workers) {
      for (let number = 1_000; number < 3_000; number += 1) sessions.open(deviceRow(number), owner());
    }
    await settled();
    for (const { sessions } of workers) expect(sessions.get(1)).toBeDefined();
    const holders = () => workers.filter(({ sessions }) => sessions.get(1)).length;
    const floodEndsMs = performance.now() + limits.sessionEchoMs + 1_000;
    while (performance.now() < floodEndsMs && holders() > 1) {
      for (const { bus } of workers) bus.restore();
      await steadySleep(25);
    }
    expect(holders()).toBe(1);
  });

  it('a child of a gateway stays when its own credentials change, and goes with its device', async () => {
    const { sessions } = await open();
    const child = owner();
    sessions.open(deviceRow(1), child);
    stored.set(1, { ...deviceRow(1), credentialsVersion: 2 });
    sessions.changed(change(1));
    await settled();
    expect(child.ends).toEqual([]);
    stored.delete(1);
    sessions.changed('all');
    await settled();
    expect(child.ends).toEqual(['device_deleted']);
  });

  it('ends when its number is that of another device, and the sessions of others are checked', async () => {
    const { sessions } = await open();
    const [lost, revoked] = [owner(), owner()];
    sessions.open(deviceRow(1), lost, 1);
    sessions.open(deviceRow(2), revoked, 1);
    // PostgreSQL has lost device 1, and has given its number to another device.
    stored.set(1, { ...deviceRow(1), id: 'other', credentialsVersion: 1 });
    stored.set(2, { ...deviceRow(2), credentialsVersion: 2 });
    sessions.changed('all');
    await settled();
    expect([lost.ends, revoked.ends]).toEqual([['device_deleted'], ['credentials_changed']]);
  });

  it('reads again when the credentials changed while the device signed in', async () => {
    const { sessions } = await open();
    const mine = owner();
    stored.set(1, { ...deviceRow(1), credentialsVersion: 2 });
    sessions.changed(change(1));
    sessions.open(deviceRow(1), mine, 1);
    await settled();
    expect(mine.ends).toEqual(['credentials_changed']);
  });

  it('reads again when the credentials changed while the device signed in, however many others changed since', async () => {
    const { sessions } = await open();
    stored.set(1, { ...deviceRow(1), credentialsVersion: 2 });
    sessions.changed(change(1));
    for (let n = 0; n < limits.sessionChangesMax; n += 1) sessions.changed(change(10 + n));
    const late = owner();
    sessions.open(deviceRow(1), late, 1);
    await settled();
    expect(late.ends).toEqual(['credentials_changed']);
  });

  it('reads again when the device was deleted while it signed in once more', async () => {
    const { sessions } = await open();
    const [former, late] = [owner(), owner()];
    sessions.open(deviceRow(1), former, 1);
    stored.delete(1);
    sessions.changed(change(1, true));
    sessions.open(deviceRow(1), late, 1);
    await settled();
    expect([former.ends, late.ends]).toEqual([['device_deleted'], ['device_deleted']]);
  });

  it('holds many sessions against the store with one query', async () => {
    const { sessions } = await open();
    for (const number of [1, 2, 3]) sessions.open(deviceRow(number), owner(), 1);
    queries = [];
    for (const number of [1, 2, 3, 1]) sessions.changed(change(number));
    await settled();
    expect(queries).toEqual([[1, 2, 3]]);
  });

  it('stays open while the store is unavailable, and is checked afterwards', async () => {
    const { sessions } = await open();
    const mine = owner();
    sessions.open(deviceRow(1), mine, 1);
    isAway = true;
    stored.set(1, { ...deviceRow(1), credentialsVersion: 2 });
    sessions.changed(change(1));
    await settled();
    expect(mine.ends).toEqual([]);
    isAway = false;
    await vi.waitFor(() => expect(mine.ends).toEqual(['credentials_changed']), 20_000);
  });

  it('stays when the answer of the store is older than its credentials', async () => {
    const { sessions } = await open();
    const mine = owner();
    sessions.open(deviceRow(1), mine, 5);
    sessions.changed(change(1));
    await settled();
    expect(mine.ends).toEqual([]);
  });
});
