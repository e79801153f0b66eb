import { expect, it } from 'vitest';
import { blockDevices } from './blocks.ts';
import { SeenTimes } from './seen-times.ts';

const far = 2 ** 52;

it('notes times and marks of devices, near and far apart', () => {
  const seen = new SeenTimes();
  const devices = [1, 2, blockDevices, 64 * blockDevices - 1, 64 * blockDevices, 1_000_003, far];
  for (const [n, device] of devices.entries()) seen.note(device, 1_000 + n);
  seen.note(2, 5_000);
  expect(devices.map((device) => seen.timeOf(device))).toEqual([1_000, 5_000, 1_002, 1_003, 1_004, 1_005, 1_006]);
  expect([seen.timeOf(3), seen.timeOf(far - 1), seen.timeOf(far / 2)]).toEqual([0, 0, 0]);
  expect([...seen.blocks].map(({ block }) => block)).toEqual([
    ...new Set(devices.map((device) => Math.floor(device / blockDevices))),
  ]);
  seen.learnActive([2, far]);
  expect(seen.takeWoken(10)).toEqual(devices.filter((device) => device !== 2 && device !== far));
  expect(seen.settledTime(9_000)).toBe(1_000);
});

it('takes a block in its turn, and removes it after turns without activity, alone', () => {
  const seen = new SeenTimes();
  seen.note(0, 1_000);
  seen.note(3 * blockDevices, 2_000);
  const blocksOf = (turn: number) => seen.takeDue(turn, 4, 1).map(({ block }) => block);
  expect([blocksOf(0), blocksOf(1), blocksOf(2), blocksOf(3)]).toEqual([[0], [], [], [3]]);
  for (const block of seen.blocks) block.unwrittenSince = 0;
  expect(seen.settledTime(9_000)).toBe(9_000);
  seen.note(3 * blockDevices + 1, 3_000);
  expect([blocksOf(0), blocksOf(0), blocksOf(3)]).toEqual([[], [], [3]]);
  expect([seen.timeOf(0), seen.timeOf(3 * blockDevices)]).toEqual([0, 2_000]);
  expect([...seen.blocks].map(({ block }) => block)).toEqual([3]);
  // The device is not known as active any more.
  seen.takeWoken(10);
  seen.note(0, 4_000);
  expect([seen.takeWoken(10), seen.timeOf(0)]).toEqual([[0], 4_000]);
});

it('gives woken devices some at a time, those that could not be written first', () => {
  const seen = new SeenTimes();
  for (let device = 0; device < 5; device += 1) seen.note(device, 1_000);
  expect(seen.takeWoken(2)).toEqual([0, 1]);
  seen.keepWoken([1]);
  seen.note(5, 1_000);
  expect(seen.woken).toBe(5);
  expect(seen.takeWoken(3)).toEqual([1, 2, 3]);
  expect(seen.takeWoken(3)).toEqual([4, 5]);
  seen.note(6, 1_000);
  seen.keepWoken([4, 5]);
  expect([seen.takeWoken(9), seen.takeWoken(9), seen.woken]).toEqual([[4, 5, 6], [], 0]);
});
