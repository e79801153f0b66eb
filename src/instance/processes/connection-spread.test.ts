import { expect, it } from 'vitest';
import { connectionsMost } from './connection-spread.ts';

const now = 100_000;
const reported = (mqttConnections: number, ageMs = 0) => ({ mqttConnections, reportedAt: now - ageMs });

/** Returns the workers that leave new connections to the others. */
function ahead(...workers: ReturnType<typeof reported>[]): number[] {
  const most = connectionsMost(workers, now);
  return workers.flatMap(({ mqttConnections }, n) => (mqttConnections > most ? [n] : []));
}

it('a worker that is clearly above the mean leaves new connections to the others, the lowest one never', () => {
  expect(ahead(reported(0), reported(0), reported(0))).toEqual([]);
  expect(ahead(reported(8), reported(2))).toEqual([]);
  expect(ahead(reported(123), reported(9), reported(43), reported(25))).toEqual([0]);
  expect(ahead(reported(20_000), reported(17_000), reported(12_000))).toEqual([0]);
  for (const many of [10, 1_000, 1_000_000])
    expect(ahead(reported(many), reported(many), reported(0))).not.toContain(2);
});

it('a worker that does not report may be frozen: the others accept, however few connections it has', () => {
  expect(ahead(reported(100), reported(0, 900))).toEqual([0]);
  expect(ahead(reported(100), reported(0, 1_100))).toEqual([]);
  expect(ahead(reported(100), reported(90), reported(0, 1_100))).toEqual([]);
});
