import { expect, it } from 'vitest';
import { limits } from '../base/limits.ts';
import { createLog } from '../base/log.ts';
import type { Queries } from '../postgres/client.ts';
import { UpdateReads } from './update-reads.ts';

it('devices of one tenant neither block nor delay those of another', async () => {
  /** The devices of each read, in the order of the reads. */
  const reads: number[][] = [];
  let answer = () => {};
  const answers = new Promise<void>((resolve) => {
    answer = resolve;
  });
  const postgres: Queries = {
    async query<Row>(text: string, [devices = []]: unknown[] = []): Promise<Row[]> {
      if (!text.includes('"offeredMs"')) return [];
      reads.push(devices as number[]);
      await answers;
      return [];
    },
  };
  const updateReads = new UpdateReads(postgres, createLog('fatal', 'test'));
  const ask = (number: number, tenantId: string) =>
    updateReads.ask({ number, tenantId, customerId: null }, 0).then(
      () => 'answered',
      ({ reason }: { reason: string }) => reason,
    );
  // The first batch is being read. Then requests of one tenant fill the queue.
  const outcomes = [ask(0, 'orchard')];
  await expect.poll(() => reads.length).toBe(1);
  for (let n = 1; n <= limits.updateQueueMax; n += 1) outcomes.push(ask(n, 'orchard'));
  const other = limits.updateQueueMax + 1;
  const outcome = ask(other, 'mill');
  expect(await outcomes.at(-1)).toBe('updates_waiting');
  answer();
  expect(await outcome).toBe('answered');
  expect(reads[1]).toContain(other);
  expect(new Set((await Promise.all(outcomes)).slice(0, -1))).toEqual(new Set(['answered']));
});

it('devices that are deleted one after the other refuse no read of another device', async () => {
  const deleted = [1, 2];
  const postgres: Queries = {
    async query<Row>(text: string): Promise<Row[]> {
      if (!text.includes('insert into attribute_head') || deleted.pop() === undefined) return [];
      throw Object.assign(new Error('a device is gone'), { code: '23503', constraint: 'attribute_head_device_fkey' });
    },
  };
  const updateReads = new UpdateReads(postgres, createLog('fatal', 'test'));
  const { version } = await updateReads.ask({ number: 3, tenantId: 'orchard', customerId: null }, 0);
  expect(version).toBe(0);
  expect(deleted).toEqual([]);
});
