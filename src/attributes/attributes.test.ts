/** The number of large reads of devices that run at once. */
import { expect, test } from 'vitest';
import { limits } from '../base/limits.ts';
import type { Queries } from '../postgres/client.ts';
import { Attributes } from './attributes.ts';
import type { AttributeWriter } from './writer.ts';

const row = { scope: 1, key: 'k', kind: 4, value: 'x', lastUpdateTs: 0 };

test('few large reads run at once, until their answers are written, and small ones do not wait for them', async () => {
  let statements = 0;
  const large = 7;
  const queries = {
    query: async (_text: string, [device, , bytesMax]: [number, number[], number]) => {
      statements += 1;
      const fits = device !== large || bytesMax > limits.attributeLargeReadBytesMin;
      return [{ ...row, fits }];
    },
  } as unknown as Queries;
  const attributes = new Attributes(queries, {} as AttributeWriter);
  let end!: () => void;
  const ended = new Promise<void>((resolve) => (end = resolve));
  let writing = 0;
  const write = async () => {
    writing += 1;
    await ended;
    writing -= 1;
  };
  const asker = { number: large, tenantId: 't' };
  const reads = Array.from({ length: 40 }, () =>
    attributes.readFor(asker, large, ['CLIENT_SCOPE'], null, async (rows) => {
      expect(rows).toHaveLength(1);
      await write();
    }),
  );
  const others = { number: 8, tenantId: 't' };
  expect(await attributes.readFor(others, 8, ['CLIENT_SCOPE'], null, (rows) => rows[0]!.key)).toBe('k');
  await new Promise((resolve) => setImmediate(resolve));
  expect(writing).toBeGreaterThan(0);
  expect(writing).toBeLessThanOrEqual(limits.attributeLargeReadsAtOnceMax);
  // Reads that wait have asked the store only for the size.
  expect(statements).toBe(40 + 1 + writing);
  end();
  await Promise.all(reads);
  expect(statements).toBe(40 + 1 + 40);
});
