/** Children of one gateway: who is connected, in what order operations run, and how updates go down. */
import { describe, expect, it, vi } from 'vitest';
import { deviceRow } from '../../test/harness/device-row.ts';
import { newTroubles } from '../../test/harness/troubles.ts';
import type { Follower } from '../attributes/followers.ts';
import type { Update } from '../attributes/update.ts';
import { systemClock } from '../base/clock.ts';
import { type Fault, unavailable } from '../base/errors.ts';
import { limits } from '../base/limits.ts';
import { CachedDevice, type DeviceRow } from '../device/model/cached-device.ts';
import type { SessionOwner } from '../downlink/sessions.ts';
import type { RpcRequest } from '../rpc/rpc.ts';
import { Gateway, type GatewayDeps } from './gateway.ts';
import type { FoundChildren, WantedChild } from './names.ts';

const rowOf = (number: number, name: string): DeviceRow => ({ ...deviceRow(number, name), madeBy: null });

const deviceOf = (row: DeviceRow) => new CachedDevice(row);
const wanted = (...names: string[]): WantedChild[] => names.map((name) => ({ name, type: '' }));
const turn = () => new Promise((resolve) => setImmediate(resolve));

interface Followed {
  asked: number;
  confirmed: number[];
  update(update: Update): void;
  failed(): void;
}

const hubNumber = 1_000_000;

/** Names are numbered in the order of their lookups; `hold` delays the answers of lookups. */
function setUp(childrenMax = 0, hub: Partial<DeviceRow> = {}) {
  const numbers = new Map<string, number>();
  const devices = new Map<number, CachedDevice>();
  const owners = new Map<number, SessionOwner>();
  const followers = new Map<number, Followed>();
  const listening = new Set<number>();
  const sent: { name: string; json: string; confirm: (delivered: boolean) => void }[] = [];
  const dropped: string[] = [];
  const ended: number[] = [];
  const borrowed = new Set<number>();
  const lookups: string[][] = [];
  const refused = new Map<string, Fault>();
  const rows = new Map<string, Partial<DeviceRow>>();
  let hold: Promise<void> = Promise.resolve();
  const deps = {
    sessions: {
      open: (row: DeviceRow, owner: SessionOwner) => {
        owners.set(row.number, owner);
        const device = devices.get(row.number) ?? deviceOf(row);
        devices.set(row.number, device);
        return { device, end: () => ended.push(row.number) };
      },
      get: (number: number) => ({ owner: owners.get(number) }),
    },
    devices: {
      adopt: (row: DeviceRow) => {
        borrowed.add(row.number);
        return deviceOf(row);
      },
      release: ({ number }: CachedDevice) => borrowed.delete(number),
    },
    names: {
      forget: () => {},
      find: async (_: unknown, list: WantedChild[]): Promise<FoundChildren> => {
        lookups.push(list.map(({ name }) => name));
        await hold;
        return new Map(
          list.map(({ name }) => {
            if (!numbers.has(name)) numbers.set(name, numbers.size + 1);
            return [name, refused.get(name) ?? { ...rowOf(numbers.get(name)!, name), ...rows.get(name) }] as const;
          }),
        );
      },
    },
    updates: {
      lossFree: true,
      follow: ({ number: device }: { number: number }, follower: Follower) => {
        const followed: Followed = {
          asked: 0,
          confirmed: [],
          update: (update) => follower.update(update),
          failed: () => follower.failed(new Error('away')),
        };
        followers.set(device, followed);
        return {
          leave: () => followers.delete(device),
          ask: () => {
            followed.asked += 1;
          },
          confirmed: ({ version }: Update) => followed.confirmed.push(version),
        };
      },
    },
    rpcSessions: {
      listen: (device: number) => {
        listening.add(device);
        return () => listening.delete(device);
      },
    },
    troubles: newTroubles(systemClock),
    monotonic: () => 0,
    childrenMax,
    customerScope: 'customer',
  };
  const link = {
    attributes: (name: string, { json }: Update, confirm: (delivered: boolean) => void) => {
      sent.push({ name, json, confirm });
      return true;
    },
    rpc: () => true,
    dropped: (name: string, reason: string) => dropped.push(`${name} ${reason}`),
  };
  const gateway = new Gateway(
    deps as unknown as GatewayDeps,
    deviceOf({ ...rowOf(hubNumber, 'hub'), isGateway: true, ...hub }),
    link,
  );
  const connect = (...names: string[]) =>
    new Promise<ReadonlyMap<string, Fault>>((resolve) => gateway.run(wanted(...names), resolve));
  return {
    ...{
      gateway,
      link,
      connect,
      numbers,
      devices,
      owners,
      borrowed,
      followers,
      listening,
      sent,
      dropped,
      ended,
      lookups,
      refused,
      rows,
    },
    holdLookups: () => {
      let release = () => {};
      hold = new Promise((resolve) => {
        release = resolve;
      });
      return release;
    },
  };
}

const updateOf = (version: number): Update => ({ kind: 'changes', version, json: `{"v":${version}}` });

describe('operations', () => {
  it('run at once for children that are connected, and later, in order, for others', async () => {
    const { gateway, connect, holdLookups, lookups } = setUp();
    await connect('A');
    const ran: string[] = [];
    gateway.run(wanted('A'), () => ran.push('at once'));
    expect(ran).toEqual(['at once']);
    const release = holdLookups();
    gateway.run(wanted('B'), () => ran.push('first'));
    gateway.run(wanted('A'), () => ran.push('second'));
    gateway.run([], () => ran.push('third'));
    expect(gateway.isBusy).toBe(true);
    await turn();
    expect(ran).toEqual(['at once']);
    release();
    await connect('C');
    expect(ran).toEqual(['at once', 'first', 'second', 'third']);
    expect(gateway.isBusy).toBe(false);
    expect(lookups).toEqual([['A'], ['B'], ['C']]);
  });

  it('look up a child again that was disconnected while they waited', async () => {
    const { gateway, connect, holdLookups, lookups } = setUp();
    await connect('A');
    const release = holdLookups();
    gateway.run(wanted('B'), () => gateway.disconnect('A'));
    let isThere = false;
    gateway.run(wanted('A'), () => {
      isThere = gateway.child('A') !== undefined;
    });
    release();
    await connect('C');
    expect(isThere).toBe(true);
    expect(lookups.filter((names) => names.includes('A'))).toHaveLength(2);
  });

  it('name the refused child, connect the others, and know no child after the end', async () => {
    const { gateway, connect, refused, ended } = setUp();
    refused.set('B', unavailable('child_lookup', 'no'));
    const outcome = await connect('A', 'B');
    expect([...outcome.keys()]).toEqual(['B']);
    expect(gateway.child('A')).toBeDefined();
    gateway.end();
    expect(ended).toEqual([1]);
    expect((await connect('A')).get('A')).toMatchObject({ status: 404 });
    expect(gateway.size).toBe(0);
  });

  it('that wait when the connection ends are carried out, on devices without a session', async () => {
    const { gateway, connect, holdLookups, owners, borrowed, followers } = setUp();
    await connect('known');
    gateway.setAttributes(true);
    const release = holdLookups();
    const seen: string[] = [];
    const note = (name: string) =>
      gateway.run(wanted(name), (refused) =>
        seen.push(`${name} ${refused.size} ${gateway.child(name)?.device.number}`),
      );
    note('new');
    note('known');
    gateway.end();
    const sessions = owners.size;
    release();
    await vi.waitFor(() => expect(seen).toEqual(['new 0 2', 'known 0 1']), 20_000);
    await vi.waitFor(() => expect(gateway.size).toBe(0), 20_000);
    expect(owners.size).toBe(sessions);
    expect(borrowed).toEqual(new Set());
    expect(followers.size).toBe(0);
    expect((await connect('known')).get('known')).toMatchObject({ status: 404 });
  });

  it('connect no more than childrenMax', async () => {
    const { gateway, connect } = setUp(2);
    expect([...(await connect('A', 'B', 'C')).keys()]).toEqual(['C']);
    expect((await connect('D')).get('D')).toMatchObject({ errorCode: 41, reason: 'gateway_children' });
    gateway.disconnect('A');
    expect((await connect('D')).size).toBe(0);
  });
});

describe('children', () => {
  it('follow and listen while the streams are on', async () => {
    const { gateway, connect, followers, listening } = setUp();
    await connect('A');
    gateway.setAttributes(true);
    gateway.setRpc(true);
    await connect('B');
    expect([followers.size, listening.size]).toEqual([2, 2]);
    gateway.disconnect('A');
    expect([followers.size, listening.size]).toEqual([1, 1]);
    gateway.setAttributes(false);
    expect([followers.size, listening.size]).toEqual([0, 1]);
    gateway.setRpc(false);
    expect(listening.size).toBe(0);
  });

  it('are switched in pieces, however many there are, and only by the last switch', async () => {
    const { gateway, connect, followers } = setUp();
    await connect(...Array.from({ length: 2000 }, (_, n) => `child ${n}`));
    gateway.setAttributes(true);
    expect(followers.size).toBeLessThan(2000);
    await vi.waitFor(() => expect(followers.size).toBe(2000), 20_000);
    gateway.setAttributes(false);
    gateway.setAttributes(true);
    gateway.setAttributes(false);
    await vi.waitFor(() => expect(followers.size).toBe(0), 20_000);
  });

  it('that another session takes over are dropped, and the gateway is notified', async () => {
    const { gateway, connect, owners, dropped, ended, followers } = setUp();
    gateway.setAttributes(true);
    await connect('A', 'B');
    owners.get(1)!.sessionEnded('taken_over');
    owners.get(2)!.sessionEnded('device_deleted');
    expect(dropped).toEqual(['A taken_over', 'B device_deleted']);
    expect([gateway.size, followers.size]).toEqual([0, 0]);
    expect(ended).toEqual([1, 2]);
  });

  it('that are renamed are there under their new name', async () => {
    const { gateway, connect, devices, numbers } = setUp();
    await connect('A');
    const child = gateway.child('A')!;
    devices.get(1)!.refresh({ ...rowOf(1, 'Z'), version: 2 });
    expect(child.isCurrent).toBe(false);
    expect(gateway.child('A')).toBeUndefined();
    expect(gateway.child('Z')).toBe(child);
    // The gateway sends a message for the child before the child was looked up.
    devices.get(1)!.refresh({ ...rowOf(1, 'Y'), version: 3 });
    numbers.set('Y', 1);
    await connect('Y');
    expect(gateway.child('Y')).toBe(child);
    expect(gateway.size).toBe(1);
  });

  it('are not the gateway itself: it sends for itself, without a second session', async () => {
    const { gateway, connect, numbers, owners } = setUp();
    numbers.set('hub', hubNumber);
    expect((await connect('hub')).size).toBe(0);
    expect(gateway.child('hub')!.device).toBe(gateway.device);
    expect(owners.size).toBe(0);
  });
});

describe('a gateway of a customer', () => {
  it('connects devices of that customer and no others', async () => {
    const { connect, rows, gateway } = setUp(0, { customerId: 'c' });
    rows.set('own', { customerId: 'c' });
    rows.set('of another', { customerId: 'd' });
    const refused = await connect('own', 'of another', 'of none');
    expect([...refused.keys()]).toEqual(['of another', 'of none']);
    const fault = refused.get('of another')!;
    expect(fault).toMatchObject({ status: 403, reason: 'child_out_of_scope' });
    expect(fault.message).toContain('"of another"');
    expect(gateway.size).toBe(1);
  });

  it('loses a child that goes to another customer, and all children when it goes itself', async () => {
    const { connect, rows, gateway, devices, dropped } = setUp(0, { customerId: 'c' });
    for (const name of ['A', 'B', 'C']) rows.set(name, { customerId: 'c' });
    await connect('A', 'B', 'C');
    devices.get(1)!.refresh({ ...rowOf(1, 'A'), customerId: 'd', version: 2 });
    for (const name of ['A', 'B']) gateway.checkChild(gateway.child(name)!);
    expect(dropped).toEqual(['A out_of_scope']);
    expect(gateway.child('A')).toBeUndefined();
    gateway.device.refresh({ ...rowOf(hubNumber, 'hub'), customerId: 'd', version: 2 });
    gateway.checkChildren();
    await vi.waitFor(() => expect(gateway.size).toBe(0), 20_000);
  });
});

describe('a gateway without a customer', () => {
  it('connects all devices of the tenant until it is no gateway any more', async () => {
    const { connect, rows, gateway } = setUp();
    rows.set('A', { customerId: 'c' });
    expect((await connect('A', 'B')).size).toBe(0);
    gateway.device.refresh({ ...rowOf(hubNumber, 'hub'), isGateway: false, version: 2 });
    gateway.checkChildren();
    expect(gateway.size).toBe(0);
    expect((await connect('A')).get('A')).toMatchObject({ status: 403, reason: 'no_gateway' });
  });

  it('connects only what it made when it is confined; the maker of a device may be unknown for a while', async () => {
    const { connect, rows } = setUp(0, { isConfined: true });
    rows.set('own', { madeBy: hubNumber, customerId: 'c' });
    rows.set('unknown', { madeBy: undefined });
    const refused = await connect('own', 'of another', 'unknown');
    expect(refused.get('own')).toBeUndefined();
    expect(refused.get('of another')).toMatchObject({ status: 403, reason: 'child_out_of_scope' });
    expect(refused.get('unknown')).toMatchObject({ status: 503 });
  });
});

describe('updates', () => {
  it('count as known when they and all before them have arrived', async () => {
    const { gateway, connect, followers, sent } = setUp();
    gateway.setAttributes(true);
    await connect('A');
    const follower = followers.get(1)!;
    follower.update(updateOf(1));
    follower.update(updateOf(2));
    sent[1]!.confirm(true);
    expect(follower.confirmed).toEqual([]);
    sent[0]!.confirm(true);
    expect(follower.confirmed).toEqual([1, 2]);
    follower.update(updateOf(3));
    sent[2]!.confirm(false);
    expect(follower.confirmed).toEqual([1, 2]);
  });

  it('beyond the cap of unconfirmed ones are read again later, and nothing of the child overtakes them', async () => {
    const { gateway, connect, followers, sent } = setUp();
    gateway.setAttributes(true);
    const count = limits.gatewayUpdatesInFlightMax + 10;
    await connect(...Array.from({ length: count }, (_, n) => `child ${n}`));
    for (const follower of followers.values()) follower.update(updateOf(1));
    expect(sent).toHaveLength(limits.gatewayUpdatesInFlightMax);
    const late = followers.get(count)!;
    sent[0]!.confirm(true);
    late.update(updateOf(2));
    expect(sent).toHaveLength(limits.gatewayUpdatesInFlightMax);
    for (const { confirm } of sent.slice(1)) confirm(true);
    expect([...followers.values()].filter(({ asked }) => asked === 1)).toHaveLength(10);
    late.update(updateOf(2));
    expect(sent.at(-1)).toMatchObject({ name: `child ${count - 1}`, json: '{"v":2}' });
  });

  it('of which no part fits the gateway are confirmed inside the call, and the next one is sent', async () => {
    const { gateway, connect, followers, sent, link } = setUp();
    gateway.setAttributes(true);
    await connect('A');
    const follower = followers.get(1)!;
    const { attributes } = link;
    link.attributes = (_name, _update, confirm) => {
      confirm(true);
      return true;
    };
    follower.update(updateOf(1));
    link.attributes = attributes;
    follower.update(updateOf(2));
    sent[0]!.confirm(true);
    expect(follower.confirmed).toEqual([1, 2]);
  });

  it('that the store could not give are asked for again', async () => {
    vi.useFakeTimers();
    try {
      const { gateway, connect, followers } = setUp();
      gateway.setAttributes(true);
      await connect('A');
      followers.get(1)!.failed();
      expect(followers.get(1)!.asked).toBe(0);
      vi.advanceTimersByTime(limits.gatewayRetryMs);
      expect(followers.get(1)!.asked).toBe(1);
      gateway.end();
    } finally {
      vi.useRealTimers();
    }
  });
});

it('a gateway that has ended, or a child that is not routed, asserts its state and names the gateway', async () => {
  const { gateway, connect, owners, followers } = setUp();
  gateway.setAttributes(true);
  await connect('A', 'B');
  const owner = owners.get(1)!;
  const follower = followers.get(1)!;
  const child = gateway.child('A')!;
  gateway.disconnect('A');
  const gone = new RegExp(`^BUG: a child that is not routed .* \\(children of gateway of device id-${hubNumber}\\)$`);
  expect(() => owner.sessionEnded('taken_over')).toThrow(gone);
  expect(() => follower.update(updateOf(1))).toThrow(gone);
  expect(() => follower.failed()).toThrow(gone);
  expect(() => child.noteRefused('rate_limit')).toThrow(gone);
  expect(() => child.deliver({} as RpcRequest, () => {})).toThrow(gone);
  await expect(gateway.connect([])).rejects.toThrow(/in the middle of an operation/);
  gateway.end();
  expect(() => gateway.end()).toThrow(/ends once/);
  expect(() => gateway.setAttributes(false)).toThrow(/has no streams/);
  expect(() => gateway.setRpc(true)).toThrow(/has no streams/);
});
