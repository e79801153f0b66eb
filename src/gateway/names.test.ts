/** Lookups by name: gathered, cached until a change, and not repeated for refused names. */
import { expect, it } from 'vitest';
import { deviceRow } from '../../test/harness/device-row.ts';
import { Fault, unavailable } from '../base/errors.ts';
import { limits } from '../base/limits.ts';
import type { DeviceRow } from '../device/model/cached-device.ts';
import type { ChildRequest } from '../onboarding/gateway-children.ts';
import { ChildNames, type FoundChildren } from './names.ts';

const gateway = { id: 'g', tenantId: 't', number: 1_001, customerId: null };
const other = { id: 'h', tenantId: 't', number: 1_002, customerId: null };
const ofCustomer = { ...other, number: 1_003, customerId: 'c' };
const wanted = (...names: string[]) => names.map((name) => ({ name, type: '' }));

function setUp(queueMax?: number) {
  const time = { ms: 0 };
  const asked: string[][] = [];
  const answers = new Map<string, DeviceRow | Fault>();
  let numbers = 0;
  let during = () => {};
  let failure: Fault | undefined;
  const find = async (tenantId: string, requests: ChildRequest[]): Promise<FoundChildren> => {
    asked.push(requests.map(({ name }) => name));
    await new Promise((resolve) => setImmediate(resolve));
    during();
    if (failure) throw failure;
    const rows = requests.map(({ name }): [string, DeviceRow | Fault] => {
      numbers += 1;
      const row = { ...deviceRow(numbers, name), tenantId };
      return [name, answers.get(name) ?? row];
    });
    return new Map(rows);
  };
  const clock = { now: () => time.ms, monotonic: () => time.ms };
  const names = new ChildNames({ findOrCreate: find, clock, customerScope: 'customer', queueMax });
  return {
    ...{ names, time, asked, answers },
    whileAsking: (act: () => void) => {
      during = act;
    },
    fail: (fault: Fault | undefined) => {
      failure = fault;
    },
  };
}

const change = (deviceNumber: number, deleted = false) => ({
  credentialsId: 'c',
  deviceId: 'd',
  deviceNumber,
  deleted,
});

it('one statement answers all requests of a turn, and the next one all made meanwhile', async () => {
  const { names, asked } = setUp();
  const first = [names.find(gateway, wanted('a', 'b')), names.find(other, wanted('b', 'c', 'c'))];
  await new Promise((resolve) => setImmediate(resolve));
  const second = [names.find(gateway, wanted('d')), names.find(gateway, wanted('e', 'a'))];
  const found = await Promise.all([...first, ...second]);
  // The gateways take turns.
  expect(asked).toEqual([
    ['a', 'c', 'b'],
    ['d', 'e'],
  ]);
  expect(found.map((map) => [...map.keys()].sort().join(''))).toEqual(['ab', 'bc', 'd', 'ae']);
  expect(found[0]!.get('b')).toBe(found[1]!.get('b'));
});

it('forgets the earlier name of a device that is found under its new name before the change is received', async () => {
  const { names, asked, answers } = setUp();
  const numberOf = async (name: string) => ((await names.find(gateway, wanted(name))).get(name) as DeviceRow).number;
  expect(await numberOf('earlier')).toBe(1);
  answers.set('new', { ...deviceRow(1, 'new'), tenantId: 't' });
  expect(await numberOf('new')).toBe(1);
  names.changed(change(1));
  // A missing device is made, with the next number.
  expect(await numberOf('earlier')).toBe(3);
  expect(asked).toEqual([['earlier'], ['new'], ['earlier']]);
  expect(names.size).toBe(1);
});

it('splits what is too much for one statement, and keeps tenants apart', async () => {
  const { names, asked } = setUp();
  const many = Array.from({ length: limits.childNamesBatchMax + 1 }, (_, n) => `n${n}`);
  const [found] = await Promise.all([
    names.find(gateway, wanted(...many)),
    names.find({ ...gateway, id: 'x', tenantId: 'u' }, wanted('n0')),
  ]);
  expect(found.size).toBe(many.length);
  expect(asked.map((list) => list.length)).toEqual([limits.childNamesBatchMax, 1, 1]);
});

it('remembers a device for the gateway that has it, until it changes', async () => {
  const { names, asked } = setUp();
  const row = (await names.find(gateway, wanted('a'))).get('a') as DeviceRow;
  expect((await names.find(gateway, wanted('a'))).get('a')).toBe(row);
  expect(asked).toHaveLength(1);
  // The last gateway of the device is stored.
  await names.find(other, wanted('a'));
  expect(asked).toHaveLength(2);
  const known = (await names.find(other, wanted('a'))).get('a') as DeviceRow;
  names.changed(change(known.number));
  await names.find(other, wanted('a'));
  expect(asked).toHaveLength(3);
  names.changed('all');
  await names.find(other, wanted('a'));
  expect(asked).toHaveLength(4);
});

it('does not remember what changed while it was asked for', async () => {
  const { names, asked, whileAsking } = setUp();
  whileAsking(() => names.changed(change(1, true)));
  expect((await names.find(gateway, wanted('a'))).get('a')).toMatchObject({ number: 1 });
  whileAsking(() => {});
  await names.find(gateway, wanted('a'));
  expect(asked).toHaveLength(2);
});

it('a refused name is not looked up again for a while, or until a device is deleted', async () => {
  const { names, asked, answers, time } = setUp();
  answers.set('a', new Fault('device_limit', 'No room.'));
  for (let n = 0; n < 3; n += 1) {
    expect((await names.find(gateway, wanted('a'))).get('a')).toMatchObject({ reason: 'device_limit' });
  }
  expect(asked).toHaveLength(1);
  time.ms += limits.refusedChildMs;
  await names.find(gateway, wanted('a'));
  expect(asked).toHaveLength(2);
  names.changed(change(77, true));
  await names.find(gateway, wanted('a'));
  expect(asked).toHaveLength(3);
});

it('while the database is unavailable every caller gets its 503, and nothing is cached', async () => {
  const { names, asked, fail } = setUp();
  fail(unavailable('postgres_away', 'away'));
  expect((await names.find(gateway, wanted('a', 'b'))).get('b')).toMatchObject({
    status: 503,
    reason: 'postgres_away',
  });
  fail(undefined);
  expect((await names.find(gateway, wanted('a'))).get('a')).toMatchObject({ name: 'a' });
  expect(asked).toHaveLength(2);
});

it("a device that is not the gateway's to act for is not asked for again, and not marked as connected through it", async () => {
  const { names, asked } = setUp();
  await names.find(gateway, wanted('a'));
  expect((await names.find(ofCustomer, wanted('a'))).get('a')).toMatchObject({ number: 1 });
  await names.find(gateway, wanted('a'));
  expect(asked).toEqual([['a']]);
});

it('tenants take turns, and one that asks for many names keeps no other tenant out', async () => {
  const { names, asked } = setUp(4);
  const many = names.find(gateway, wanted('a', 'b', 'c', 'd', 'e'));
  const second = names.find({ ...gateway, id: 'z', tenantId: 'other' }, wanted('x'));
  expect([...(await second).values()][0]).toMatchObject({ name: 'x', tenantId: 'other' });
  const found = await many;
  expect([found.get('d'), found.get('e')].map((fault) => (fault as Fault).reason)).toEqual([
    'child_names_queue',
    'child_names_queue',
  ]);
  expect(asked).toEqual([['a', 'b', 'c'], ['x']]);
});

it('a name that is refused at once ends no call while another name is asked for', async () => {
  const { names } = setUp(1);
  const first = names.find(gateway, wanted('b'));
  const found = await names.find(gateway, wanted('a', 'b'));
  expect([...found.keys()].sort()).toEqual(['a', 'b']);
  expect(found.get('a')).toMatchObject({ reason: 'child_names_queue' });
  expect(found.get('b')).toBe((await first).get('b'));
});
