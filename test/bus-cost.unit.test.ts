/**
 * Several hosts over Redis: what an event of a device costs the bus does not depend on the number of workers. The
 * sessions and the downlink of simulated workers are the real classes.
 */
import { expect, test } from 'vitest';
import { benchBusCost } from '../bench/micro/bus-cost.ts';

const deliveriesMax = 6;

test('a connect, a command and a change of an attribute cost at most six deliveries with 8, 16 and 64 workers', {
  timeout: 120_000,
}, async () => {
  const costs = [];
  for (const workers of [8, 16, 64]) {
    const { connect, command, attribute } = await benchBusCost(workers);
    costs.push({ connect, command, attribute });
  }
  for (const cost of costs) expect(Math.max(...Object.values(cost))).toBeLessThanOrEqual(deliveriesMax);
  expect(costs).toEqual([costs[0], costs[0], costs[0]]);
  // Asked, answered, granted, taken, replied.
  expect(costs[0]!.command).toBe(5);
});
