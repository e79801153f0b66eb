import { expect, test } from 'vitest';
import { hostPaceMs } from './host-pace.ts';

const usual = { hosts: 1, callersWait: false, intervalMsMax: 1_000, partsOfPartition: 12 };

test('all hosts together make two inserts a second, as far as the longest interval allows', () => {
  const paces = [1, 2, 3, 30].map((hosts) => hostPaceMs({ ...usual, hosts }));
  expect(paces).toEqual([500, 1_000, 1_000, 1_000]);
  expect(hostPaceMs({ ...usual, hosts: 8, intervalMsMax: 4_000 })).toBe(4_000);
  expect([1, 2, 30].map((hosts) => hostPaceMs({ ...usual, hosts, callersWait: true }))).toEqual([40, 80, 1_000]);
});

test('a table with many parts gets fewer inserts, down to an eighth', () => {
  const paces = [0, 300, 600, 1_000, 2_400, 30_000].map((partsOfPartition) =>
    hostPaceMs({ ...usual, hosts: 2, partsOfPartition }),
  );
  expect(paces.map(Math.round)).toEqual([1_000, 1_000, 2_000, 3_333, 8_000, 8_000]);
});

test('a pace that parts make slower stays below the time after which a shard counts as unanswering', () => {
  const paceOf = (intervalMsMax: number) => hostPaceMs({ ...usual, hosts: 60, intervalMsMax, partsOfPartition: 2_400 });
  expect([4_000, 15_000, 25_000].map(paceOf)).toEqual([15_000, 15_000, 25_000]);
});
