import { expect, it } from 'vitest';
import { changesOf } from './connection-spread.ts';

const now = 100_000;
const worker = (mqttConnections: number, ageMs = 0) => ({
  mqttConnections,
  isFull: false,
  reportedAt: now - ageMs,
  accepts: true,
  isAhead: false,
});
const left = (mqttConnections: number) => ({ ...worker(mqttConnections), accepts: false, isAhead: true });
const returning = (mqttConnections: number) => ({ ...worker(mqttConnections), accepts: false });

/** Returns the numbers of the workers that change. */
function changes(...workers: ReturnType<typeof worker>[]): number[] {
  return changesOf(workers, now)
    .map((each) => workers.indexOf(each))
    .sort();
}

it('a worker that is clearly above the mean leaves new connections to the others, the lowest one never', () => {
  expect(changes(worker(0), worker(0), worker(0))).toEqual([]);
  expect(changes(worker(8), worker(2))).toEqual([]);
  expect(changes(worker(123), worker(9), worker(43), worker(25))).toEqual([0]);
  expect(changes(worker(20_000), worker(17_000), worker(12_000))).toEqual([0]);
  for (const many of [10, 1_000, 1_000_000]) expect(changes(worker(many), worker(many), worker(0))).not.toContain(2);
});

it('it accepts again when it is not clearly above the mean any more', () => {
  expect(changes(left(123), worker(9))).toEqual([]);
  expect(changes(left(123), worker(110))).toEqual([0]);
});

it('a worker that does not report may be frozen: the others accept, however few connections it has', () => {
  expect(changes(worker(100), worker(0, 900))).toEqual([0]);
  expect(changes(left(100), worker(0, 1_100))).toEqual([0]);
  expect(changes(left(100), left(90), worker(0, 1_100))).toEqual([0, 1]);
});

it('a worker leaves no connection to one that is full, however few that one has', () => {
  const full = (mqttConnections: number) => ({ ...worker(mqttConnections), isFull: true });
  expect(changes(worker(100), full(50))).toEqual([]);
  expect(changes(left(100), full(50))).toEqual([0]);
  expect(changes(worker(100), full(50), worker(10))).toEqual([0]);
  expect(changes(full(100), full(50))).toEqual([]);
});

it('a worker leaves only when two others listen, or the only other one does', () => {
  expect(changes(returning(30), worker(200))).toEqual([]);
  expect(changes(worker(100), worker(100), worker(0))).toEqual([0]);
  expect(changes(left(100), worker(90), worker(0))).toEqual([]);
  expect(changes(worker(100), worker(90), worker(0), worker(0))).toEqual([0, 1]);
  // Both would leave; the one with more connections does.
  expect(changes(worker(90), worker(100), worker(0), worker(0), returning(0))).toEqual([0, 1]);
  expect(changes(worker(90), worker(100), worker(0), returning(0), returning(0))).toEqual([1]);
});
