/** Large attributes of many devices: no process reads the values of all of them at once. */

import { randomUUID } from 'node:crypto';
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { openPostgres } from '../../src/postgres/client.ts';
import { type Device, devicesMade, eventually } from '../harness/api.ts';
import { type Engine, startEngine } from '../harness/engine.ts';
import { good } from '../harness/reports.ts';
import { silentLog as log } from '../harness/silent-log.ts';

/** The values of all devices take twice the memory of a process. */
const deviceCount = 600;
const valueChars = 1_000_000;

let engine: Engine;
let devices: Device[];

beforeAll(async () => {
  engine = await startEngine({ workers: 1, reports: true, env: { NODE_OPTIONS: '--max-old-space-size=300' } });
  const rows = Array.from({ length: deviceCount }, (_, n) => ({ name: `device-${n}` }));
  devices = await devicesMade(await engine.api.send('POST', '/api/devices/bulk', { devices: rows }));
  const { url } = JSON.parse(readFileSync(join(engine.dataDir, 'run', 'postgres.json'), 'utf8')) as { url: string };
  const postgres = openPostgres({ url, poolMax: 1, log });
  // What as many calls would write, and what a device has that polled before.
  const made = `from device where name like 'device-%'`;
  await postgres.query(
    `insert into attribute_head (device, version, changes_seen, deletions_seen) select number, 1, 0, 0 ${made}`,
  );
  await postgres.query(
    `insert into attribute (device, scope, key, kind, value, last_update_ts, version)
     select number, 2, 'manual', 4, repeat('x', ${valueChars}), 1, 1 ${made}`,
  );
  await postgres.close();
}, 120_000);

afterAll(() => engine?.destroy());

test('devices that all ask for a large update at once get it from the worker that goes on', async () => {
  const restarts = await engine.metric('worker_restarts_total');
  const asked = devices.map(async ({ token }) => {
    await eventually(async () => {
      const response = await fetch(`${engine.api.http}/api/v1/${token}/attributes/updates?timeout=20000`);
      const text = await response.text();
      return response.status === 200 && text.length > valueChars;
    }, 120_000);
  });
  await Promise.all(asked);
  expect(await engine.metric('worker_restarts_total')).toBe(restarts);
}, 300_000);

test('a view that names a large attribute holds up no report of another attribute', async () => {
  const token = await engine.api.adminToken();
  const of = { token, url: `http://127.0.0.1:${engine.analyticsPort}` };
  const field = (attributeScope: string, key: string) => ({
    ...{ label: key, source: 'ATTRIBUTE', attributeScope, key, role: 'ROW' },
  });
  const names = { label: 'n', source: 'ENTITY_FIELD', key: 'name', role: 'VALUE', aggregation: 'COUNT' };
  const save = async (...fields: object[]) =>
    (await good('POST', '/apiAnalytics/view', { name: randomUUID(), fields }, of)).id as string;
  await save(field('SHARED_SCOPE', 'manual'));
  const path = `/api/plugins/telemetry/DEVICE/${devices[0]!.id}/SERVER_SCOPE`;
  expect((await engine.api.send('POST', path, { site: 'North' })).status).toBe(200);
  const view = await save(field('SERVER_SCOPE', 'site'), names);
  const { dataTable } = await eventually(
    () => good('POST', '/apiAnalytics/publicApi/buildReport', { viewConfigId: view }, of),
    120_000,
  );
  expect(dataTable).toContainEqual({ site: 'North', n: 1 });
}, 300_000);
