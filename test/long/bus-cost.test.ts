/**
 * Several hosts over Redis: what an event of a device, and the rate limits, cost the bus does not depend on the number
 * of workers. The sessions, the downlink and the rate limits of simulated workers are the real classes.
 */
import { expect, test } from 'vitest';
import { benchBusCost, benchLimitsCost } from '../../bench/micro/bus-cost.ts';
import { useSteadyClock } from '../harness/steady-clock.ts';

useSteadyClock();

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

const limitDeliveriesMax = 10;

test('rate limits cost a worker at most ten deliveries a second with 8, 16 and 64 workers, and none while it is idle', {
  timeout: 120_000,
}, async () => {
  for (const workers of [8, 16, 64]) {
    const { idle, busy } = await benchLimitsCost(workers, 2);
    expect(idle).toBe(0);
    expect(busy, `${workers} workers`).toBeLessThanOrEqual(limitDeliveriesMax);
    expect(busy, `${workers} workers`).toBeGreaterThan(1);
  }
});
