import { expect, test, vi } from 'vitest';
import { sharedApi } from '../../test/harness/api-handlers.ts';
import type { Queries } from '../postgres/client.ts';
import { RpcNumbers } from './numbers.ts';

const { tokenOf, create, postgres } = await sharedApi();

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

test('a command to a device that is deleted at this moment does not refuse the commands of other devices', async () => {
  const jwt = await tokenOf();
  const device = async () => {
    const { id, tenantId } = await create(jwt);
    const [row] = await postgres.query<{ number: number }>('select number from device where id = $1', [id.id]);
    return { id: id.id, device: row!.number, tenantId: tenantId.id, customerId: null };
  };
  const [first, second, kept] = [await device(), await device(), await device()];
  const numbers = new RpcNumbers(postgres);
  const next = (each: typeof kept) => numbers.next(each).catch(({ reason }) => reason);
  const remove = async (queries: Queries, { id }: typeof kept) => {
    await queries.query('delete from device_credentials where device_id = $1', [id]);
    await queries.query('delete from device where id = $1', [id]);
  };
  const untilBlocked = async () => {
    const waiting = `select 1 from pg_stat_activity
      where datname = current_database() and wait_event_type = 'Lock' and query like '%insert into rpc_sequence%'`;
    await vi.waitFor(async () => expect(await postgres.query(waiting)).toHaveLength(1), { timeout: 20_000 });
  };
  // Each delete commits while the statement of the numbers waits for it.
  const taken = await postgres.transaction(async (outer) => {
    await remove(outer, second);
    const asked = await postgres.transaction(async (inner) => {
      await remove(inner, first);
      const numbered = [kept, second, first, kept].map(next);
      await untilBlocked();
      return { numbered };
    });
    await untilBlocked();
    return asked;
  });
  expect(await Promise.all(taken.numbered)).toEqual([1, 'not_found', 'not_found', 2]);
});
