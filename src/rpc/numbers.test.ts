import { expect, test } from 'vitest';
import type { Queries } from '../postgres/client.ts';
import { RpcNumbers } from './numbers.ts';

test('a tenant that sends many commands at once leaves a place for another tenant', async () => {
  let answer: (() => void) | undefined;
  const query = async (_text: string, values: unknown[]) => {
    await new Promise<void>((resolve) => (answer = resolve));
    return (values[0] as number[]).map((device) => ({ device, next: 10 }));
  };
  const numbers = new RpcNumbers({ query } as unknown as Queries, 10);
  const next = (tenantId: string) =>
    numbers.next({ device: 7, tenantId, customerId: null }).catch(({ reason }) => reason);
  const asked = Array.from({ length: 9 }, () => next('a'));
  expect(await next('a')).toBe('rpc_numbers_share');
  asked.push(next('b'));
  expect(await next('c')).toBe('rpc_numbers_queue');
  await new Promise((resolve) => setImmediate(resolve));
  answer!();
  const settled = await Promise.all(asked);
  expect(settled).not.toContain('rpc_numbers_share');
  const again = next('c');
  await new Promise((resolve) => setImmediate(resolve));
  answer!();
  expect(await again).not.toBe('rpc_numbers_queue');
});
