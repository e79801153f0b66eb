/** The relay between the workers of a host and a server: a real ClickHouse, and a stand-in for its faults. */
import { once } from 'node:events';
import type { Server } from 'node:http';
import type { AddressInfo } from 'node:net';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { type SharedClickHouse, shareTestClickHouse } from '../../../test/harness/clickhouse-server.ts';
import { StandIn } from '../../../test/harness/clickhouse-stand-in.ts';
import { Link } from '../../../test/harness/link.ts';
import { silentLog } from '../../../test/harness/silent-log.ts';
import { type ClickHouse, openClickHouse } from '../client.ts';
import { insertTelemetry } from '../statements.ts';
import { createRelay } from './relay.ts';

let real: SharedClickHouse;
const closing: (() => unknown)[] = [];

beforeAll(async () => {
  real = await shareTestClickHouse();
});

afterAll(async () => {
  for (const close of closing.reverse()) await close();
  await real.stop();
});

async function relayTo(url: string, everyMs = 0, heldBytesMax?: number): Promise<{ relay: Server; relayUrl: string }> {
  const relay = createRelay({ url, everyMs: () => everyMs, ...(heldBytesMax && { heldBytesMax }) }).listen(
    0,
    '127.0.0.1',
  );
  await once(relay, 'listening');
  closing.push(() => {
    relay.closeAllConnections();
    relay.close();
  });
  return { relay, relayUrl: `http://127.0.0.1:${(relay.address() as AddressInfo).port}` };
}

function clientOf(options: Partial<Parameters<typeof openClickHouse>[0]>): ClickHouse {
  const none = { url: '', user: 'u', password: '', database: 'd', log: silentLog };
  const clickhouse = openClickHouse({ ...none, ...options });
  closing.push(() => clickhouse.close());
  return clickhouse;
}

const ofReal = () => ({ ...real.server, database: real.database });

/** A block of one point, made by the engine. */
async function blockOf(device: number, num: number, key = 'k'): Promise<Buffer> {
  const select = `SELECT ${device}::UInt64 AS device, '${key}'::LowCardinality(String) AS key, 1750000000000::Int64 AS ts,
    3::UInt8 AS kind, ${num}::Float64 AS num, 9223372036854775808::UInt64 AS version FORMAT Native`;
  const headers = { 'X-ClickHouse-Key': real.server.password };
  const answer = await fetch(real.server.url, { method: 'POST', body: select, headers });
  return Buffer.from(await answer.arrayBuffer());
}

/** After a first insert, further ones gather for so long. */
const gatherMs = 500;

const joined = (mark: string) => ({ mark, joinable: true });

test('inserts of two workers are one part, under the marks of both', async () => {
  const { relayUrl } = await relayTo(real.server.url, gatherMs);
  const workers = [0, 1].map(() => clientOf({ ...ofReal(), relayUrl }));
  const blocks = [await blockOf(71, 1), await blockOf(72, 2)];
  await workers[0]!.insertBlocks(insertTelemetry, await blockOf(70, 0), joined('first'));
  const parts = async () => {
    const sql = `SELECT count() AS n FROM system.parts WHERE database = {database:String} AND table = 'telemetry' AND active`;
    const [row] = await real.clickhouse.rows<{ n: string }>(sql, { database: real.database });
    return Number(row!.n);
  };
  const before = await parts();
  const answers = workers.map((worker, n) => worker.insertBlocks(insertTelemetry, blocks[n]!, joined(`mark-${n}`)));
  expect(await Promise.all(answers)).toEqual([{ repeated: false }, { repeated: false }]);
  expect(await parts()).toBe(before + 1);
  const rows = await real.clickhouse.rows('SELECT device, num FROM telemetry WHERE device IN (71, 72) ORDER BY device');
  expect(rows).toEqual([
    { device: '71', num: 1 },
    { device: '72', num: 2 },
  ]);
});

test('the rows that the server refuses are refused to their worker alone, with the code of the server', async () => {
  const server = await StandIn.start();
  closing.push(() => server.stop());
  server.behave = ({ body }) => (body.includes('bad') ? 27 : 'ok');
  const { relayUrl } = await relayTo(server.url, gatherMs);
  const workers = [0, 1, 2].map(() => clientOf({ url: server.url, relayUrl }));
  const blocks = await Promise.all(['good', 'bad', 'fine'].map((key, n) => blockOf(81 + n, n, key)));
  await workers[0]!.insertBlocks(insertTelemetry, await blockOf(80, 0), joined('first'));
  const answers = await Promise.allSettled(
    workers.map((worker, n) => worker.insertBlocks(insertTelemetry, blocks[n]!, joined(`m${n}`))),
  );
  expect(answers.map(({ status }) => status)).toEqual(['fulfilled', 'rejected', 'fulfilled']);
  expect(answers[1]).toMatchObject({ reason: { code: 27, kind: 'content' } });
  // All together, and then each alone.
  const [, together, ...alone] = server.inserts.map(({ body }) => body);
  expect(together).toHaveLength(blocks.reduce((sum, { length }) => sum + length, 0));
  expect(alone).toHaveLength(blocks.length);
  expect(alone).toEqual(expect.arrayContaining(blocks));
});

test('a worker that cannot reach the relay inserts without it', async () => {
  const { relay, relayUrl } = await relayTo(real.server.url);
  relay.close();
  const worker = clientOf({ ...ofReal(), relayUrl });
  expect(await worker.insertBlocks(insertTelemetry, await blockOf(91, 1), joined('m'))).toEqual({ repeated: true });
  expect(await real.clickhouse.rows('SELECT num FROM telemetry WHERE device = 91')).toEqual([{ num: 1 }]);
});

test('a relay that is frozen delays one insert, and is used again when it answers', async () => {
  const { relay, relayUrl } = await relayTo(real.server.url);
  const link = await Link.to(Number(new URL(relayUrl).port));
  closing.push(() => link.close());
  const worker = clientOf({ ...ofReal(), relayUrl: `http://127.0.0.1:${link.port}` });
  let relayed = 0;
  relay.on('request', ({ method }) => {
    if (method === 'POST') relayed += 1;
  });
  const block = await blockOf(93, 1);
  const insert = () => worker.insertBlocks(insertTelemetry, block, { ...joined('m'), timeoutMs: 3_000 });
  await insert();
  link.cut();
  await expect(insert()).rejects.toMatchObject({ timedOut: true });
  for (let n = 0; n < 3; n += 1) expect(await insert()).toEqual({ repeated: false });
  link.join();
  const before = relayed;
  await expect.poll(async () => (await insert()) && relayed, { timeout: 20_000 }).toBeGreaterThan(before);
});

test('an insert for which the relay has no room is made without it, and leaves no trace there', async () => {
  const block = await blockOf(95, 1);
  const { relayUrl } = await relayTo(real.server.url, 0, block.length);
  const worker = clientOf({ ...ofReal(), relayUrl });
  const twice = Buffer.concat([block, block]);
  expect(await worker.insertBlocks(insertTelemetry, twice, joined('m'))).toEqual({ repeated: true });
  expect(await worker.insertBlocks(insertTelemetry, block, joined('m'))).toEqual({ repeated: false });
  expect(await real.clickhouse.rows('SELECT num FROM telemetry FINAL WHERE device = 95')).toEqual([{ num: 1 }]);
});

test('a server that is unavailable is unavailable through the relay too', async () => {
  const server = await StandIn.start();
  const { relayUrl } = await relayTo(server.url);
  const worker = clientOf({ url: server.url, relayUrl });
  await server.stop();
  const insert = worker.insertBlocks(insertTelemetry, await blockOf(1, 1), joined('m'));
  await expect(insert).rejects.toMatchObject({ code: 0, kind: 'transient', connectionLost: false });
});

test('an insert that its worker no longer waits for does not begin', async () => {
  const server = await StandIn.start();
  closing.push(() => server.stop());
  const { relayUrl } = await relayTo(server.url, 300);
  const worker = clientOf({ url: server.url, relayUrl });
  const blocks = await Promise.all([1, 2, 3].map((device) => blockOf(device, 1)));
  await worker.insertBlocks(insertTelemetry, blocks[0]!, joined('first'));
  const left = worker.insertBlocks(insertTelemetry, blocks[1]!, { ...joined('left'), timeoutMs: 50 });
  await expect(left).rejects.toMatchObject({ timedOut: true });
  await worker.insertBlocks(insertTelemetry, blocks[2]!, joined('third'));
  expect(server.inserts.map(({ body }) => body)).toEqual([blocks[0], blocks[2]]);
});

test('late rows do not hold up live ones', async () => {
  const server = await StandIn.start();
  closing.push(() => server.stop());
  const { relayUrl } = await relayTo(server.url, 3_600_000);
  const worker = clientOf({ url: server.url, relayUrl });
  const block = await blockOf(1, 1);
  const late = { ...joined('late'), settings: { priority: '1' as const } };
  await worker.insertBlocks(insertTelemetry, block, late);
  await worker.insertBlocks(insertTelemetry, block, joined('live'));
  expect(server.inserts.map(({ isPatient }) => isPatient)).toEqual([true, false]);
});

test('an insert that may not be joined, and anything else, is not for the relay', async () => {
  const { relayUrl } = await relayTo(real.server.url);
  expect((await fetch(`${relayUrl}/?query=SELECT+1`)).status).toBe(404);
  expect((await fetch(`${relayUrl}/?query=SELECT+1&log_comment=mark`, { method: 'POST' })).status).toBe(404);
});
