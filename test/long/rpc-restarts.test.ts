/** Persistent commands and numbers across restarts: a clean one, and all processes killed at once. */
import { afterAll, beforeAll, expect, test } from 'vitest';
import { eventually } from '../harness/api.ts';
import { type Engine, startEngine } from '../harness/engine.ts';

let engine: Engine;

beforeAll(async () => {
  engine = await startEngine({ workers: 2 });
});

afterAll(() => engine?.destroy());

function persistent(deviceId: string, method: string): Promise<string> {
  return engine.api.sendPersistent(deviceId, { method, expirationTime: Date.now() + 300_000 });
}

async function statusOf(rpcId: string): Promise<string> {
  return (await engine.api.persistentState(rpcId)).status;
}

async function poll(token: string): Promise<{ id: number; method: string }> {
  const answer = await fetch(`${engine.api.http}/api/v1/${token}/rpc?timeout=20000`);
  expect(answer.status).toBe(200);
  return (await answer.json()) as { id: number; method: string };
}

async function reply(token: string, id: number): Promise<void> {
  const answer = await fetch(`${engine.api.http}/api/v1/${token}/rpc/${id}`, { method: 'POST', body: '"done"' });
  expect(answer.status).toBe(200);
}

test.each([
  ['a clean restart', () => engine.restart()],
  ['kill -9 of all processes', () => engine.killAll().then(() => engine.start())],
])('queued and delivered persistent commands survive %s, and no number comes again', async (name, restart) => {
  const device = await engine.api.createDevice(name);
  const delivered = await persistent(device.id, 'first');
  expect(await poll(device.token)).toMatchObject({ id: 1, method: 'first' });
  await eventually(async () => (await statusOf(delivered)) === 'DELIVERED');
  const queued = await persistent(device.id, 'second');
  expect(await statusOf(queued)).toBe('QUEUED');
  await restart();
  expect(await statusOf(delivered)).toBe('DELIVERED');
  expect(await poll(device.token)).toMatchObject({ id: 2, method: 'second' });
  await reply(device.token, 1);
  await reply(device.token, 2);
  await eventually(async () => (await statusOf(delivered)) === 'SUCCESSFUL');
  await eventually(async () => (await statusOf(queued)) === 'SUCCESSFUL');
  const polling = poll(device.token);
  await engine.api.send('POST', `/api/rpc/oneway/${device.id}`, { method: 'third' });
  expect(await polling).toMatchObject({ id: 3, method: 'third' });
});

test('a command that waits when the server stops is refused with a reason, and the poll ends as expired', async () => {
  const device = await engine.api.createDevice('stopping');
  const other = await engine.api.createDevice('stopping too');
  const polling = fetch(`${engine.api.http}/api/v1/${other.token}/rpc?timeout=20000`);
  const calling = engine.api.send('POST', `/api/rpc/twoway/${device.id}`, { method: 'm', timeout: 20_000 });
  await new Promise((resolve) => setTimeout(resolve, 500));
  const begin = performance.now();
  await engine.stop();
  expect(performance.now() - begin).toBeLessThan(8_000);
  const answer = await calling;
  expect(answer.status).toBe(503);
  expect(((await answer.json()) as { message: string }).message).toContain('stopping');
  expect((await polling).status).toBe(408);
});
