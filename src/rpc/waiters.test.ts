/** The commands of a worker: order by age, deadlines by a moved clock, caps, and a model check of the heap. */
import fc from 'fast-check';
import { afterEach, beforeEach, expect, test, vi } from 'vitest';
import type { Fault } from '../base/errors.ts';
import { limits } from '../base/limits.ts';
import { systemScheduler } from '../base/scheduler.ts';
import { type Command, isOlder, Waiters } from './waiters.ts';

const clock = { now: () => Date.now(), monotonic: () => performance.now() };

beforeEach(() => {
  vi.useFakeTimers({ toFake: ['setTimeout', 'clearTimeout', 'performance', 'Date'] });
});

afterEach(() => {
  vi.useRealTimers();
});

function command(id: number, afterMs: number, events: string[] = [], device = 1, params = 'null'): Command {
  const tell = (what: string) => () => {
    events.push(`${what} ${id}`);
  };
  return {
    ...{
      device,
      tenantId: 't',
      customerId: 'c',
      id,
      method: 'm',
      params,
      oneway: false,
      persistent: false,
      stage: 'queued',
      heapAt: -1,
    },
    deadline: clock.monotonic() + afterMs,
    wanted: undefined,
    ...{ taken: tell('taken'), confirmed: tell('confirmed'), replied: tell('replied') },
    granted: () => {},
    ...{ expired: tell('expired'), away: tell('away'), doubtful: tell('doubtful'), withdrawn: tell('withdrawn') },
  };
}

function waiters(options: Partial<ConstructorParameters<typeof Waiters>[0]> = {}): Waiters {
  const shares = { deviceBytesMax: 1e6, customerBytesMax: 1e6, tenantBytesMax: 1e6 };
  const caps = { perDeviceMax: 100, commandsMax: 1000, bytesMax: 1e6, ...shares };
  return new Waiters({ clock, scheduler: systemScheduler, ...caps, onEmpty: () => {}, ...options });
}

test('commands of a device are in the order of their ids, in any order of arrival', () => {
  const all = waiters();
  for (const id of [2, 0, 1]) all.add(command(id, 1000));
  expect(all.line(1)!.queued.map(({ id }) => id)).toEqual([0, 1, 2]);
  const first = all.line(1)!.queued[0]!;
  all.take(first);
  all.requeue(first);
  expect(all.line(1)!.queued.map(({ id }) => id)).toEqual([0, 1, 2]);
});

test('ids that wrapped are younger than those before', () => {
  expect(isOlder(5, 6)).toBe(true);
  expect(isOlder(6, 5)).toBe(false);
  expect(isOlder(2 ** 31 - 1, 0)).toBe(true);
  expect(isOlder(0, 2 ** 31 - 1)).toBe(false);
  expect(isOlder(7, 7)).toBe(false);
});

test('each expires at its own deadline, and not once it is removed', () => {
  const events: string[] = [];
  const all = waiters();
  const removed = command(3, 50, events);
  for (const each of [command(1, 300, events), command(2, 100, events), removed]) all.add(each);
  expect(all.remove(removed)).toBe(true);
  expect(all.remove(removed)).toBe(false);
  vi.advanceTimersByTime(150);
  expect(events).toEqual(['expired 2']);
  vi.advanceTimersByTime(200);
  expect(events).toEqual(['expired 2', 'expired 1']);
  expect(all.size).toBe(0);
  expect(all.bytes).toBe(0);
});

test('many commands with one deadline end a few at once, tenants in turn', () => {
  const events: string[] = [];
  const all = waiters();
  const { rpcEndsAtOnce: atOnce, rpcEndsMs: pauseMs } = limits;
  for (let id = 0; id < 2 * atOnce; id += 1) all.add(command(id, 100, events));
  all.add({ ...command(1_000, 100, events), tenantId: 'other' });
  vi.advanceTimersByTime(100);
  expect(all.size).toBe(0);
  expect(events.length).toBe(atOnce);
  expect(events).toContain('expired 1000');
  vi.advanceTimersByTime(pauseMs);
  expect(events.length).toBe(2 * atOnce);
  vi.advanceTimersByTime(pauseMs);
  expect(events.length).toBe(2 * atOnce + 1);
});

test('a deadline beyond what a timer can hold is waited for', () => {
  const events: string[] = [];
  const all = waiters();
  all.add(command(1, 3_000_000_000, events));
  vi.advanceTimersByTime(2_900_000_000);
  expect(events).toEqual([]);
  vi.advanceTimersByTime(200_000_000);
  expect(events).toEqual(['expired 1']);
});

test('a device, a worker and their bytes have caps that name themselves', () => {
  const refused = (all: Waiters, next: Command) => {
    try {
      all.add(next);
      return 'taken';
    } catch (error) {
      return `${(error as Fault).status} ${(error as Fault).reason}`;
    }
  };
  const device = waiters({ perDeviceMax: 1 });
  device.add(command(1, 10));
  expect(refused(device, command(2, 10))).toBe('429 rpc_device_full');
  const worker = waiters({ commandsMax: 1 });
  worker.add(command(1, 10));
  expect(refused(worker, command(1, 10, [], 2))).toBe('503 rpc_full');
  const bytes = waiters({ bytesMax: 1500 });
  bytes.add(command(1, 10, [], 1, '"'.padEnd(400, 'x')));
  expect(refused(bytes, command(2, 10))).toBe('503 rpc_full');
});

test('a device, a customer and a tenant each have a share of the bytes, which others do not feel', () => {
  const shares = { deviceBytesMax: 1_600, customerBytesMax: 3_200, tenantBytesMax: 4_800 };
  const all = waiters(shares);
  const held: Command[] = [];
  const add = (device: number, customerId: string | null, tenantId = 't') => {
    const next = { ...command(held.length, 1000, [], device), customerId, tenantId };
    try {
      all.add(next);
      held.push(next);
      return 'taken';
    } catch (error) {
      return `${(error as Fault).status} ${(error as Fault).reason}`;
    }
  };
  // Three commands of about 520 bytes fill the share of a device.
  expect([1, 1, 1, 1].map((device) => add(device, 'c'))).toEqual([...Array(3).fill('taken'), '429 rpc_device_bytes']);
  expect([2, 2, 2, 3].map((device) => add(device, 'c'))).toEqual([...Array(3).fill('taken'), '429 rpc_customer_full']);
  expect([4, 4, 4, 5].map((device) => add(device, 'd'))).toEqual([...Array(3).fill('taken'), '429 rpc_tenant_full']);
  expect(add(6, null)).toBe('429 rpc_tenant_full');
  expect(add(7, 'c', 'u')).toBe('429 rpc_customer_full');
  expect(add(7, null, 'u')).toBe('taken');
  for (const each of held.splice(0)) all.remove(each);
  expect(all.bytes).toBe(0);
  expect([1, 1, 1, 1].map((device) => add(device, 'c'))).toEqual([...Array(3).fill('taken'), '429 rpc_device_bytes']);
});

test('the line of a device goes with its last command', () => {
  const empty: number[] = [];
  const all = waiters({ onEmpty: (device) => empty.push(device) });
  const first = command(1, 1000, [], 7);
  const second = command(2, 1000, [], 7);
  all.add(first);
  all.add(second);
  all.take(first);
  all.remove(first);
  expect(empty).toEqual([]);
  all.remove(second);
  expect(empty).toEqual([7]);
  expect(all.line(7)).toBeUndefined();
});

test('after any additions and removals, deadlines come in order', () => {
  const step = fc.record({ afterMs: fc.integer({ min: 1, max: 1000 }), isRemoved: fc.boolean() });
  fc.assert(
    fc.property(fc.array(step, { maxLength: 60 }), (steps) => {
      const events: string[] = [];
      const all = waiters();
      const commands = steps.map(({ afterMs }, id) => command(id, afterMs, events));
      for (const each of commands) all.add(each);
      for (const [id, { isRemoved }] of steps.entries()) if (isRemoved) all.remove(commands[id]!);
      const left = steps.map(({ afterMs }, id) => ({ afterMs, id })).filter(({ id }) => !steps[id]!.isRemoved);
      const deadlines = new Map(left.map(({ afterMs, id }) => [`expired ${id}`, afterMs]));
      vi.advanceTimersByTime(2000);
      const ended = events.map((event) => deadlines.get(event));
      expect(ended).toEqual(left.map(({ afterMs }) => afterMs).sort((a, b) => a - b));
    }),
  );
});
