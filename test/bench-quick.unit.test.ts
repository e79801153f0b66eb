/** The committed baseline of ratios, and which ratios count as worse than the baseline. */
import { expect, test } from 'vitest';
import { faultOfRatio, type Ratio, readBaseline, verdictOf } from '../bench/baseline.ts';

const ratio = (value: number, isHigherBetter: boolean): Ratio => {
  return { value, least: value, greatest: value, isHigherBetter };
};

test.each([
  ['a rate', 0.6, 1.2, true, 'as before'],
  ['a rate', 0.59, 1.2, true, 'WORSE'],
  ['a rate', 2.5, 1.2, true, 'better'],
  ['a cost', 2.4, 1.2, false, 'as before'],
  ['a cost', 2.5, 1.2, false, 'WORSE'],
  ['a cost', 0.5, 1.2, false, 'better'],
  ['what could not be measured', Number.NaN, 1.2, true, 'WORSE'],
] as const)('%s of %d beside %d of the baseline', (_, now, base, isHigherBetter, verdict) => {
  expect(verdictOf(ratio(now, isHigherBetter), ratio(base, isHigherBetter))).toBe(verdict);
});

test('a ratio that is far worse than the baseline, or has none, is named with its bound', () => {
  const faults = (now: number, base: number | undefined, isHigherBetter: boolean) => {
    return faultOfRatio(
      'mqtt: rate',
      ratio(now, isHigherBetter),
      base === undefined ? base : ratio(base, isHigherBetter),
    );
  };
  expect(faults(0.6, 1.2, true)).toBe('');
  expect(faults(0.5, 1.15, true)).toBe('mqtt: rate 0.5, at least 0.575, which is 2 times worse than the baseline');
  expect(faults(2.5, 1.2, false)).toBe('mqtt: rate 2.5, at most 2.4, which is 2 times worse than the baseline');
  expect(faults(1, undefined, true)).toBe('mqtt: rate has no baseline');
});

test('the baseline says how it was made, and has a ratio to each peer of each load', () => {
  const { machine, commit, versions, loadBefore, ratios } = readBaseline();
  expect(machine.command).toMatch(/^npm run bench -- quick /);
  expect(commit).toMatch(/^[0-9a-f]{12}\+?$/);
  expect(loadBefore.idleShare).toBeGreaterThanOrEqual(0);
  expect(Object.keys(versions).sort()).toEqual(['Aedes', 'Mosquitto', 'bare uWebSockets.js']);
  const pairs = ['http: bare uWebSockets.js', 'mqtt: Mosquitto', 'mqtt: Aedes', 'gateway: Mosquitto'];
  const expected = pairs.flatMap((pair) => {
    const [load, peer] = pair.split(': ');
    return [`${load}: rate / ${peer}`, `${load}: CPU per message / ${peer}`];
  });
  expect(Object.keys(ratios).sort()).toEqual([...expected, 'bytes per point'].sort());
  for (const { value } of Object.values(ratios)) expect(value).toBeGreaterThan(0);
});
