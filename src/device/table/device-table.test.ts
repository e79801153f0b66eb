/**
 * The table of devices against a Map, over random operations; the number of entries that one operation moves; the
 * memory of a device.
 */
import { expect, test } from 'vitest';
import { Random } from '../../../test/harness/random.ts';
import { uuidOfHex } from '../../base/uuid.ts';
import type { DeviceRow } from '../model/cached-device.ts';
import { DeviceTable, type Digest, type EncodedDevice } from './device-table.ts';
import { putUuid } from './uuid-bytes.ts';

function uuid(random: Random): string {
  const hex = Array.from({ length: 32 }, () => random.below(16).toString(16)).join('');
  return uuidOfHex(hex);
}

function digest(random: Random): Digest {
  const word = () => Math.floor(random.next() * 2 ** 32);
  return { d0: word(), d1: word(), d2: word(), d3: word() };
}

const keyOf = ({ d0, d1, d2, d3 }: Digest) => `${d0} ${d1} ${d2} ${d3}`;

function maker(random: Random): () => DeviceRow {
  const tenants = Array.from({ length: 20 }, () => ({ tenantId: uuid(random), profileId: uuid(random) }));
  return () => ({
    number: random.below(3) === 0 ? Math.floor(random.next() * 2 ** 53) : random.below(2 ** 31),
    id: uuid(random),
    ...random.pick(tenants),
    customerId: random.below(2) === 0 ? null : uuid(random),
    name: random.pick(['pump', 'Größe', '量', '😀']).repeat(random.below(64)),
    version: Math.floor(random.next() * 2 ** 32),
    isGateway: random.below(2) === 0,
    isConfined: random.below(2) === 0,
  });
}

/** A device as it is in the file. */
function encoded(row: DeviceRow): EncodedDevice {
  const bytes = Buffer.alloc(1200, 0xaa);
  putUuid(row.id, bytes, 8);
  putUuid(row.tenantId, bytes, 24);
  putUuid(row.profileId, bytes, 40);
  if (row.customerId !== null) putUuid(row.customerId, bytes, 56);
  const nameBytes = bytes.write(row.name, 100);
  const { number, version, isGateway = false, isConfined = false } = row;
  const customer = row.customerId === null ? -1 : 56;
  return { bytes, id: 8, tenant: 24, customer, name: 100, nameBytes, number, version, isGateway, isConfined };
}

test('the table answers as a Map does, over random operations', () => {
  for (let seed = 1; seed <= 3; seed += 1) {
    const random = new Random(seed);
    const make = maker(random);
    const table = new DeviceTable(100_000);
    const model = new Map<string, { digest: Digest; row: DeviceRow; isLoaded: boolean }>();
    // Some digests share their part and their first slot, so that entries meet.
    const digests = Array.from({ length: 600 }, (_, i) => {
      const some = digest(random);
      return i % 2 === 0 ? some : { ...some, d0: 5, d1: random.below(3) === 0 ? 7 : some.d1 };
    });
    for (let step = 0; step < 4_000; step += 1) {
      const chosen = random.pick(digests);
      const key = keyOf(chosen);
      const known = model.get(key);
      switch (random.below(4)) {
        case 0: {
          const row = make();
          table.set(chosen, row);
          model.set(key, { digest: chosen, row, isLoaded: false });
          break;
        }
        case 1: {
          const row = make();
          table.load(chosen, encoded(row));
          model.set(key, { digest: chosen, row, isLoaded: true });
          break;
        }
        case 2:
          table.remove(chosen);
          model.delete(key);
          break;
        default:
          if (known?.isLoaded) {
            const own = digest(random);
            table.adopt(table.find(chosen), own);
            model.delete(key);
            digests.push(own);
            model.set(keyOf(own), { digest: own, row: known.row, isLoaded: false });
          }
      }
      if (step % 500 !== 499) continue;
      expect(table.size).toBe(model.size);
      expect(table.loaded).toBe([...model.values()].filter(({ isLoaded }) => isLoaded).length);
      const rowOf = (one: Digest) => {
        const place = table.find(one);
        return place === 0 ? undefined : table.row(place);
      };
      expect(digests.map(rowOf)).toEqual(digests.map((one) => model.get(keyOf(one))?.row));
    }
    let steps = 0;
    for (let next: number | undefined = 0; next !== undefined; next = table.unload(next, 64)) steps += 1;
    expect(steps).toBe(64);
    expect([table.loaded, table.size]).toEqual([0, [...model.values()].filter(({ isLoaded }) => !isLoaded).length]);
  }
});

test('a full table removes any device for a new one, and loads none', () => {
  const random = new Random(1);
  const make = maker(random);
  const table = new DeviceTable(50);
  const digests = Array.from({ length: 500 }, () => digest(random));
  for (const one of digests) {
    table.set(one, make());
    expect(table.find(one)).not.toBe(0);
    expect(table.size).toBeLessThanOrEqual(50);
  }
  const survivors = digests.filter((one) => table.find(one) !== 0);
  expect(survivors).toHaveLength(50);
  table.load(digest(random), encoded(make()));
  expect([table.size, table.loaded]).toEqual([50, 0]);
  // Each device is evicted at some time.
  for (let n = 0; n < 5_000; n += 1) table.set(digest(random), make());
  expect(survivors.filter((one) => table.find(one) !== 0)).toEqual([]);
});

test('a device takes less than 120 bytes, and no operation moves more than a few entries', () => {
  const random = new Random(2);
  const { tenantId, profileId } = maker(random)();
  const table = new DeviceTable(100_000);
  const row = { tenantId, profileId, customerId: uuid(random), version: 1 };
  const id = uuid(random);
  const digests: Digest[] = [];
  for (let n = 0; n < 30_000; n += 1) {
    digests.push(digest(random));
    table.set(digests.at(-1)!, { ...row, id, number: n, name: `device ${n}` });
  }
  expect(table.byteSize / table.size).toBeLessThan(120);
  expect(table.movedMax).toBeLessThan(100);
  const { byteSize } = table;
  for (const one of digests) table.remove(one);
  expect(table.size).toBe(0);
  for (const one of digests) table.set(one, { ...row, id, number: 1, name: 'device 12345' });
  expect(table.byteSize).toBeLessThanOrEqual(byteSize * 1.05);
});

test('a fleet whose names change their length again and again keeps the memory of two lengths at most', () => {
  const random = new Random(3);
  const { tenantId, profileId } = maker(random)();
  const table = new DeviceTable(100_000);
  const row = { tenantId, profileId, customerId: null, version: 1, id: uuid(random) };
  const digests = Array.from({ length: 5_000 }, () => digest(random));
  const rename = (characters: number) => {
    for (const [number, one] of digests.entries()) table.set(one, { ...row, number, name: 'x'.repeat(characters) });
    const lengths = digests.map((one) => table.row(table.find(one)).name.length);
    expect(lengths.every((length) => length === characters)).toBe(true);
    // Each length has its renames in another order.
    for (let n = digests.length - 1; n > 0; n -= 1) {
      const other = random.below(n + 1);
      [digests[n], digests[other]] = [digests[other]!, digests[n]!];
    }
  };
  rename(100);
  const { byteSize } = table;
  for (let characters = 20; characters < 100; characters += 8) rename(characters);
  expect(table.byteSize).toBeLessThan(2 * byteSize);
});
