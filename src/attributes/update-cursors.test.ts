/** Cursors of devices that several workers read for, against a real server. */
import { afterAll, beforeAll, expect, it } from 'vitest';
import { insertDevices } from '../../test/harness/inserted-devices.ts';
import { startTestPostgres, type TestPostgres } from '../../test/harness/postgres-server.ts';
import { createLog } from '../base/log.ts';
import type { Queries } from '../postgres/client.ts';
import { UpdateReads } from './update-reads.ts';

let server: TestPostgres;
beforeAll(async () => {
  server = await startTestPostgres();
}, 60_000);
afterAll(() => server.stop(), 60_000);

it.each([
  ['first', ['earlier', 'later']],
  ['last', ['later', 'earlier']],
] as const)(
  'of two workers that start a cursor at once, the earlier listener counts, also when stored %s',
  async (_, order) => {
    const { postgres } = server;
    const [device] = await insertDevices(postgres, 1);
    await postgres.query(`insert into attribute_head (device, version) values ($1, 1)`, [device]);
    await postgres.query(
      `insert into attribute (device, scope, key, kind, value, last_update_ts, version) values ($1, 2, 'a', 2, '29', 1500, 1)`,
      [device],
    );
    const worker = () => {
      let store = () => {};
      let hasRead = false;
      const mayStore = new Promise<void>((resolve) => {
        store = resolve;
      });
      const queries: Queries = {
        async query<Row>(text: string, values?: unknown[]): Promise<Row[]> {
          if (text.includes('insert into attribute_head')) await mayStore;
          const rows = await postgres.query<Row>(text, values);
          if (text.includes('"offeredMs"')) hasRead = true;
          return rows;
        },
      };
      const reads = new UpdateReads(queries, createLog('fatal', 'test'));
      const ask = (since: number) => reads.ask({ number: device!, tenantId: 'orchard', customerId: null }, since);
      return { ask, store, hasRead: () => hasRead };
    };
    const workers = { earlier: worker(), later: worker() };
    const answers = { earlier: workers.earlier.ask(1000), later: workers.later.ask(2000) };
    await expect.poll(() => workers.earlier.hasRead() && workers.later.hasRead()).toBe(true);
    for (const name of order) {
      workers[name].store();
      await answers[name];
    }
    const update = { version: 1, update: { kind: 'changes', version: 1, json: '{"a":29}' } };
    expect(await answers.earlier).toEqual(update);
    // The device asks again with its next connection, or its next poll.
    expect(await workers.later.ask(3000)).toEqual(update);
  },
);
