/** Refused messages by tenant, with a cap on the number of labels. */
import { expect, test } from 'vitest';
import { Metrics } from '../base/metrics/metrics.ts';
import { TenantRefusals } from './tenant-refusals.ts';

test('each of the first fifty tenants has a counter, all others share one', () => {
  const metrics = new Metrics();
  const refusals = new TenantRefusals(metrics);
  for (let round = 0; round < 2; round += 1) for (let n = 0; n < 200; n += 1) refusals.add(`tenant-${n}`);
  const samples = metrics.snapshot();
  expect(samples).toHaveLength(51);
  const value = (tenant: string) => metrics.valueOf('refused_messages_total', { tenant });
  expect([value('tenant-0'), value('tenant-49'), value('tenant-50'), value('other')]).toEqual([2, 2, 0, 300]);
});
