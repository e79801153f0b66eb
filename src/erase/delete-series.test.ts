/** How many statements deletes of series run at once, over a PostgreSQL that answers when the test says so. */
import { expect, test } from 'vitest';
import { systemClock as clock } from '../base/clock.ts';
import { limits } from '../base/limits.ts';
import type { Log } from '../base/log.ts';
import type { ClickHouse } from '../clickhouse/client.ts';
import { firstShardMap, Shards } from '../clickhouse/shards.ts';
import type { JournalReport } from '../ingest/journal-report.ts';
import type { Queries } from '../postgres/client.ts';
import { seriesDeleter } from './delete-series.ts';

/** A PostgreSQL that answers inserts of tombstones when the test says so. */
function recorder() {
  const inserts: { devices: number[]; keys: number; answer(): void; fail(error: Error): void }[] = [];
  const handedOver: number[] = [];
  const postgres = {
    query: (text: string, values: unknown[]) => {
      if (text.includes('handed_over = true')) handedOver.push(...(values[0] as number[]));
      if (!text.includes('insert into tombstones')) return Promise.resolve([]);
      const deletes = JSON.parse(values[0] as string) as { device: number; keys: string[] }[];
      const devices = deletes.map(({ device }) => device);
      return new Promise((resolve, reject) => {
        const answer = () => resolve(devices.map((id) => ({ id, rowVersion: '1' })));
        inserts.push({ devices, keys: deletes.flatMap(({ keys }) => keys).length, answer, fail: reject });
      });
    },
  } as unknown as Queries;
  const log = { warn: () => {} } as unknown as Log;
  // A journal that ships nothing: callers wait for it.
  const report = { ...{ writer: 1, run: '1', orderHigh: '5', orderShipped: '0', orderDone: '0' }, orderHeld: null };
  const remove = seriesDeleter({
    ...{ postgres, shards: new Shards([{} as ClickHouse]), cluster: '', clock, log },
    journals: () => Promise.resolve({ reports: [report as unknown as JournalReport], isWhole: true }),
  });
  return { inserts, handedOver, remove };
}

test('a tenant whose callers wait for many deletes leaves room, and its further deletes are answered sooner', async () => {
  const { inserts, handedOver, remove } = recorder();
  const range = { keys: ['k'], startTs: 0, endTs: 1, latest: 'keep' as const };
  const answered: number[] = [];
  const many = Array.from({ length: limits.seriesDeletesWaitingMax }, (_, device) =>
    remove({ device, ...range }, 'a').then(() => answered.push(device)),
  );
  for (let sum = 0, n = 0; sum < many.length; n += 1) {
    await expect.poll(() => inserts.length).toBeGreaterThan(n);
    inserts[n]!.answer();
    sum += inserts[n]!.devices.length;
  }
  const further = Array.from({ length: many.length / 10 }, (_, n) => 0.9 * many.length + n);
  await expect.poll(() => answered.length, { timeout: 10_000 }).toBeGreaterThanOrEqual(further.length);
  expect(answered.slice(0, further.length)).toEqual(further);
  expect(handedOver.slice(0, further.length)).toEqual(further);

  const started = performance.now();
  const other = remove({ device: -1, ...range }, 'b');
  await expect.poll(() => inserts.at(-1)!.devices).toEqual([-1]);
  inserts.at(-1)!.answer();
  await Promise.all([...many, other]);
  // Without a place it would have its answer after one second.
  expect(performance.now() - started).toBeGreaterThan(2000);
});

test('deletes with long lists of keys are recorded by several statements, in which tenants take turns', async () => {
  const { inserts, remove } = recorder();
  const keys = Array.from({ length: 4000 }, (_, n) => `${1000 + n}`);
  const start = (device: number, tenantId: string, list: string[]) =>
    void remove({ device, keys: list, startTs: 0, endTs: 1, latest: 'keep' }, tenantId).catch(() => {});
  start(0, 'a', ['k']);
  await expect.poll(() => inserts.length).toBe(1);
  for (let device = 1; device <= 50; device += 1) start(device, 'a', keys);
  start(-1, 'b', ['k']);
  await new Promise((resolve) => setImmediate(resolve));
  inserts[0]!.fail(new Error('lost'));
  await expect.poll(() => inserts.length).toBe(2);
  expect(inserts[1]!.keys).toBeLessThan(25_000);
  expect(inserts[1]!.devices).toContain(-1);
});

test('one statement records the deletes that wait for it, and tenants take turns in it', async () => {
  const { inserts, remove } = recorder();
  const order = (device: number) => ({ device, keys: ['k'], startTs: 0, endTs: 1, latest: 'keep' as const });
  const refusals: unknown[] = [];
  const start = (device: number, tenant: string) =>
    remove(order(device), tenant).catch((error) => refusals.push(error));

  void start(0, 'a');
  await expect.poll(() => inserts.map(({ devices }) => devices)).toEqual([[0]]);
  const many = 2 * limits.seriesDeletesPerStatementMax;
  for (let device = 1; device <= many; device += 1) void start(device, 'a');
  void start(-1, 'b');
  await new Promise((resolve) => setImmediate(resolve));
  expect(inserts).toHaveLength(1);

  inserts[0]!.fail(new Error('lost'));
  await expect.poll(() => inserts.length).toBe(2);
  expect(refusals).toHaveLength(1);
  expect(inserts[1]!.devices).toHaveLength(limits.seriesDeletesPerStatementMax);
  expect(inserts[1]!.devices.slice(0, 3)).toContain(-1);
});

test('the statement that marks many deletes names the journals of many hosts once', async () => {
  const journals = Array.from({ length: 300 }, (_, n) => {
    return { writer: n + 1, run: '1', orderHigh: '5', settled: 1_000_000, orderHeld: null, isLive: true };
  });
  const marks: { tombstones: number; journals: number }[] = [];
  let ids = 0;
  const answerTo = (text: string, values: unknown[]): unknown[] => {
    if (text.includes('insert into tombstones')) {
      return (JSON.parse(values[0] as string) as object[]).map(() => ({ id: (ids += 1), rowVersion: '1' }));
    }
    if (text.includes('set applied_at')) {
      const given = values[0] as number[];
      marks.push({ tombstones: given.length, journals: (values[5] as number[]).length });
      return given.map((id) => ({ id }));
    }
    // Each read makes objects of its own, as the driver does.
    return text.includes('from journals order by') ? structuredClone(journals) : [];
  };
  const postgres = {
    query: (text: string, values: unknown[]) => Promise.resolve(answerTo(text, values)),
  } as unknown as Queries;
  const clickhouse = { rows: () => Promise.resolve([]), exec: () => Promise.resolve() } as unknown as ClickHouse;
  const report = { ...{ writer: 1, run: '1', orderHigh: '5', orderShipped: '5', orderDone: '5' }, orderHeld: null };
  const remove = seriesDeleter({
    ...{ postgres, shards: new Shards([clickhouse]), cluster: '', clock, log: { warn: () => {} } as unknown as Log },
    journals: () => Promise.resolve({ reports: [report as unknown as JournalReport], isWhole: true }),
  });
  const outcomes = await Promise.all(
    Array.from({ length: 200 }, (_, device) =>
      remove({ device, keys: ['k'], startTs: 0, endTs: 1, latest: 'keep' }, `tenant ${device}`),
    ),
  );
  expect(new Set(outcomes)).toEqual(new Set(['done']));
  expect(marks.some(({ tombstones }) => tombstones > 20)).toBe(true);
  expect(new Set(marks.map((mark) => mark.journals))).toEqual(new Set([journals.length]));
});

test('a delete is finished at once only when no row of its device waits for a shard', async () => {
  const postgres = {
    query: (text: string, values: unknown[]) => {
      if (text.includes('insert into tombstones')) return Promise.resolve([{ id: 1, rowVersion: '1' }]);
      return Promise.resolve(text.includes('set applied_at') ? (values[0] as number[]).map((id) => ({ id })) : []);
    },
  } as unknown as Queries;
  const shards = new Shards(
    [0, 1].map((shard) => {
      return { shard, rows: () => Promise.resolve([]), exec: () => Promise.resolve() } as unknown as ClickHouse;
    }),
  );
  shards.map = { ...firstShardMap(2, 'none'), version: 4 };
  const outcomeWith = async (held: Partial<JournalReport>) => {
    const report = { ...{ writer: 1, run: '1', orderHigh: '5', orderShipped: '5', orderDone: '4' }, ...held };
    const remove = seriesDeleter({
      ...{ postgres, shards, cluster: '', clock, log: { warn: () => {} } as unknown as Log },
      journals: () => Promise.resolve({ reports: [report as unknown as JournalReport], isWhole: true }),
    });
    return await remove({ device: 2, keys: ['k'], startTs: 0, endTs: 1, latest: 'keep' });
  };
  expect(await outcomeWith({ orderHeld: null, shardsBehind: [], mapVersion: 3 })).toBe('done');
  expect(await outcomeWith({ orderHeld: '5', shardsBehind: [1], mapVersion: 4 })).toBe('done');
  expect(await outcomeWith({ orderHeld: '5', shardsBehind: [0], mapVersion: 4 })).toBe('recorded');
  expect(await outcomeWith({ orderHeld: '5', mapVersion: 4 })).toBe('recorded');
  // By another map the rows that wait for shard 1 may be of this device.
  expect(await outcomeWith({ orderHeld: '5', shardsBehind: [1], mapVersion: 3 })).toBe('recorded');
});

test('a delete waits for a stream that has no report for a moment, because its servers do not answer', async () => {
  const postgres = {
    query: (text: string, values: unknown[]) => {
      if (text.includes('insert into tombstones')) return Promise.resolve([{ id: 1, rowVersion: '1' }]);
      return Promise.resolve(text.includes('set applied_at') ? (values[0] as number[]).map((id) => ({ id })) : []);
    },
  } as unknown as Queries;
  const reportOf = (writer: number, orderShipped: string) => {
    return { writer, run: '1', orderHigh: '5', orderShipped, orderDone: orderShipped, orderHeld: null };
  };
  const journal = reportOf(1, '5');
  const answers = [[journal, reportOf(2, '3')], [journal], [journal], [journal, reportOf(2, '5')]];
  let asked = 0;
  const journals = () => {
    const reports = (answers[asked] ?? answers.at(-1)!) as JournalReport[];
    asked += 1;
    return Promise.resolve({ reports, isWhole: true });
  };
  let askedBefore = 0;
  const rows = () => {
    askedBefore ||= asked;
    return Promise.resolve([]);
  };
  const clickhouse = { rows, exec: () => Promise.resolve() } as unknown as ClickHouse;
  const remove = seriesDeleter({
    ...{ postgres, shards: new Shards([clickhouse]), cluster: '', clock, log: { warn: () => {} } as unknown as Log },
    journals,
  });
  expect(await remove({ device: 2, keys: ['k'], startTs: 0, endTs: 1, latest: 'keep' })).toBe('done');
  expect(askedBefore).toBe(answers.length);
});
