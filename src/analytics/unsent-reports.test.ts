import { expect, test } from 'vitest';
import { limits } from '../base/limits.ts';
import type { SlicedBody } from '../uws/slices.ts';
import { UnsentReports } from './unsent-reports.ts';

const reportBytes = 2 * limits.reportSliceBytes;
const bytes = (length: number) => ({ bytes: new Uint8Array(length), rows: 1, cutBy: undefined }) as never;
const tenant = (tenantId: string, customerId: string | null = null) => ({ tenantId, customerId });

test('reports that are not read hold a half for each tenant and a quarter for each customer', () => {
  const unsent = new UnsentReports(8 * reportBytes);
  const ask = (caller: ReturnType<typeof tenant>, length = reportBytes) => {
    try {
      return unsent.answer(bytes(length), 'json', caller).body as SlicedBody;
    } catch (error) {
      const { status, reason } = error as { status: number; reason: string };
      return `${status} ${reason}`;
    }
  };
  const held = [ask(tenant('a', 'x')), ask(tenant('a', 'x'))] as SlicedBody[];
  expect(ask(tenant('a', 'x'))).toBe('429 reports_unsent_share');
  held.push(ask(tenant('a', 'y')) as SlicedBody, ask(tenant('a')) as SlicedBody);
  expect(ask(tenant('a'))).toBe('429 reports_unsent_share');
  held.push(ask(tenant('b')) as SlicedBody, ask(tenant('c'), 3 * reportBytes) as SlicedBody);
  expect(ask(tenant('d'))).toBe('503 reports_unsent');
  expect(unsent.bytes).toBe(8 * reportBytes);
  for (const { release } of held) release!();
  expect(unsent.bytes).toBe(0);
});

test('a tenant takes one report of any length', () => {
  const unsent = new UnsentReports(4 * reportBytes);
  expect(unsent.answer(bytes(4 * reportBytes), 'json', tenant('a', 'x')).status).toBe(200);
});
