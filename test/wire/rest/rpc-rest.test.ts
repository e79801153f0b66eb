/**
 * Commands to devices as the operator sees them (docs/rest.md#commands): the failures of both generations of
 * paths, offline devices, and persistent commands.
 */
import { setTimeout as sleep } from 'node:timers/promises';
import { afterEach, beforeEach, expect, test } from 'vitest';
import { type Device, eventually } from '../../harness/api.ts';
import { newCustomer, newCustomerUser, ok } from '../../harness/people.ts';
import type { RawConnection } from '../../harness/raw.ts';
import { faultOf } from '../../harness/rest.ts';
import { answerText, command, poll, received, reply } from '../../harness/rpc.ts';
import { newDevice, sharedEngine } from '../../harness/shared-engine.ts';
import { connectToEachWorker } from '../../harness/workers.ts';

let operators: RawConnection[];
let devices: RawConnection[];

beforeEach(async () => {
  const { port } = sharedEngine().address;
  [operators, devices] = await Promise.all([connectToEachWorker(port), connectToEachWorker(port)]);
});

afterEach(() => {
  for (const connection of [...operators, ...devices]) connection.close();
});

async function spent<T>(work: Promise<T>): Promise<[T, number]> {
  const begin = performance.now();
  return [await work, performance.now() - begin];
}

test('expirationTime overrides the timeout, and one in the past is over at once', async () => {
  const device = await newDevice();
  const path = `/api/rpc/twoway/${device.id}`;
  const body = { method: 'm', timeout: 20_000, expirationTime: Date.now() + 800 };
  const [answer, ms] = await spent(sharedEngine().send('POST', path, body));
  expect(answer.status).toBe(504);
  expect(ms).toBeLessThan(10_000);
  const past = await spent(sharedEngine().send('POST', path, { method: 'm', expirationTime: 1 }));
  expect(past[0].status).toBe(504);
  expect(past[1]).toBeLessThan(4_900);
});

test('a device that comes while the caller waits gets the command, and its reply is the answer', async () => {
  const device = await newDevice();
  const calling = command(operators[0]!, 'twoway', device, { method: 'later' });
  await sleep(2_000);
  const { id } = received(await poll(devices[1]!, device));
  await reply(devices[1]!, device, id, '{"ok":1}');
  expect(answerText(await calling)).toBe('200 {"ok":1}');
});

test('a command without params is delivered with null', async () => {
  const device = await newDevice();
  const polling = poll(devices[1]!, device);
  await sleep(50);
  expect(answerText(await command(operators[0]!, 'oneway', device, { method: 'm' }))).toBe('200 ');
  expect((await polling).body.toString()).toBe('{"id":1,"method":"m","params":null}');
});

test('bad bodies are 400 and name what is wrong', async () => {
  const device = await newDevice();
  const f = async (body: string, expected: string) =>
    expect(await faultOf(await sharedEngine().send('POST', `/api/rpc/oneway/${device.id}`, body))).toBe(expected);
  await f('{"method":', '400/31 Invalid request body');
  await f('[]', '400/31 Invalid request body');
  await f('{"params":1}', '400/31 Member "method" must be a non-empty string.');
  await f('{"method":5}', '400/31 Member "method" must be a non-empty string.');
  await f('{"method":"m","timeout":"1"}', '400/31 Member "timeout" must be a whole number from 0 to 9007199254740991.');
  await f('{"method":"m","retries":-1}', '400/31 Member "retries" must be a whole number from 0 to 1000000.');
});

test('unknown devices, foreign devices and sysadmins are refused in plain text', async () => {
  const api = sharedEngine();
  const f = async (deviceId: string, token: string | undefined, expected: string) => {
    const answer = await api.send('POST', `/api/rpc/oneway/${deviceId}`, { method: 'm' }, token);
    expect(`${answer.status} ${await answer.text()}`).toBe(expected);
    expect(answer.headers.get('content-type')).toBe('text/plain;charset=UTF-8');
  };
  const { token: tenant } = await api.login('tenant@thingsboard.org', 'tenant');
  const { token: customer } = await api.login('customer@thingsboard.org', 'customer');
  const { token: sysadmin } = await api.login('sysadmin@thingsboard.org', 'sysadmin');
  const created = await api.send('POST', '/api/device', { name: `no-customer-${Date.now()}` }, tenant);
  const { id } = (await created.json()) as { id: { id: string } };
  await f('0b4e0f7e-0000-4000-8000-000000000000', undefined, "404 Device with requested id wasn't found!");
  await f(id.id, customer, "403 You don't have permission to perform this operation!");
  await f(id.id, sysadmin, '403 System administrator is not allowed to perform this operation!');
  expect(await faultOf(await api.send('POST', '/api/rpc/oneway/123', { method: 'm' }))).toBe(
    '400/31 Invalid UUID string: 123',
  );
});

async function persistent(deviceId: string, kind: 'oneway' | 'twoway', body: object): Promise<string> {
  const answer = await sharedEngine().send('POST', `/api/rpc/${kind}/${deviceId}`, { persistent: true, ...body });
  const text = await answer.text();
  expect(answer.status, text).toBe(200);
  const { rpcId, ...rest } = JSON.parse(text) as { rpcId: string };
  expect(rest).toEqual({});
  return rpcId;
}

async function stored(rpcId: string): Promise<Record<string, unknown>> {
  const answer = await sharedEngine().send('GET', `/api/rpc/persistent/${rpcId}`);
  expect(answer.status).toBe(200);
  return (await answer.json()) as Record<string, unknown>;
}

async function statusBecomes(rpcId: string, status: string, withinMs = 20_000): Promise<void> {
  await eventually(async () => (await stored(rpcId))['status'] === status, withinMs);
}

test('a persistent command is queued at once, delivered to the next poll, and successful with the reply', async () => {
  const device = await newDevice();
  const expirationTime = Date.now() + 60_000;
  const asked = {
    method: 'setGate',
    params: { open: true },
    expirationTime,
    retries: 3,
    additionalInfo: { by: 'job' },
  };
  const rpcId = await persistent(device.id, 'twoway', asked);
  const queued = await stored(rpcId);
  const tenantId = (queued['tenantId'] as { id: string }).id;
  expect(Object.keys(queued)).toEqual([
    ...['id', 'createdTime', 'tenantId', 'deviceId', 'expirationTime', 'request', 'response', 'status'],
    'additionalInfo',
  ]);
  expect(queued).toMatchObject({
    id: { entityType: 'RPC', id: rpcId },
    deviceId: { entityType: 'DEVICE', id: device.id },
    expirationTime,
    request: {
      id: rpcId,
      tenantId: { entityType: 'TENANT', id: tenantId },
      deviceId: { entityType: 'DEVICE', id: device.id },
      oneway: false,
      expirationTime,
      body: { method: 'setGate', params: '{"open":true}' },
      persisted: true,
      retries: 3,
    },
    response: null,
    status: 'QUEUED',
    additionalInfo: { by: 'job' },
  });
  const answer = await poll(devices[1]!, device);
  expect(received(answer)).toEqual({ id: 1, method: 'setGate', params: { open: true } });
  await statusBecomes(rpcId, 'DELIVERED');
  await reply(devices[0]!, device, 1, '{"ok":1}');
  await statusBecomes(rpcId, 'SUCCESSFUL');
  expect(await stored(rpcId)).toMatchObject({ response: { ok: 1 } });
});

test('the reply to a persistent command may come to any worker', async () => {
  for (const connection of devices) {
    const device = await newDevice();
    const rpcId = await persistent(device.id, 'twoway', { method: 'm' });
    received(await poll(connection, device));
    await reply(connection, device, 1, '"done"');
    await statusBecomes(rpcId, 'SUCCESSFUL');
  }
});

test('a one-way persistent command ends as delivered', async () => {
  const device = await newDevice();
  const rpcId = await persistent(device.id, 'oneway', { method: 'm' });
  expect(received(await poll(devices[0]!, device)).method).toBe('m');
  await statusBecomes(rpcId, 'DELIVERED');
  expect((await poll(devices[1]!, device, '?timeout=500')).status).toBe(408);
});

test('a persistent command without a session expires, and one without a reply times out', async () => {
  const [nobody, silent] = [await newDevice(), await newDevice()];
  const expirationTime = Date.now() + 6_000;
  const expiring = await persistent(nobody.id, 'twoway', { method: 'm', expirationTime });
  const timing = await persistent(silent.id, 'twoway', { method: 'm', expirationTime });
  received(await poll(devices[0]!, silent));
  await statusBecomes(expiring, 'EXPIRED', 20_000);
  await statusBecomes(timing, 'TIMEOUT', 20_000);
});

test('deleting withdraws a queued command, and then it is not found', async () => {
  const device = await newDevice();
  for (const connection of devices) {
    const rpcId = await persistent(device.id, 'oneway', { method: 'm' });
    const deleted = await sharedEngine().send('DELETE', `/api/rpc/persistent/${rpcId}`);
    expect(`${deleted.status} ${await deleted.text()}`).toBe('200 ');
    expect((await poll(connection, device, '?timeout=500')).status).toBe(408);
    const path = `/api/rpc/persistent/${rpcId}`;
    const message = `404/32 Rpc with id [${rpcId}] is not found`;
    expect(await faultOf(await sharedEngine().send('GET', path))).toBe(message);
    expect(await faultOf(await sharedEngine().send('DELETE', path))).toBe(message);
  }
});

test('a device gets no command of a user whose customer has lost it, and keeps those of the tenant', async () => {
  const device = await newDevice();
  const [first, second] = [await newCustomer(), await newCustomer()];
  const user = await newCustomerUser(first);
  await ok('POST', `/api/customer/${first}/device/${device.id}`);
  const send = (kind: string, body: object, token?: string) =>
    sharedEngine().send('POST', `/api/rpc/${kind}/${device.id}`, body, token);
  const rpcIdOf = async (response: Response) => ((await response.json()) as { rpcId: string }).rpcId;
  const opening = await rpcIdOf(await send('oneway', { method: 'open', persistent: true }, user.token));
  const calling = send('oneway', { method: 'start', timeout: 20_000 }, user.token);
  const closing = await rpcIdOf(await send('oneway', { method: 'close', persistent: true }));
  await ok('POST', `/api/customer/${second}/device/${device.id}`);
  expect(received(await poll(devices[0]!, device)).method).toBe('close');
  expect((await poll(devices[1]!, device, '?timeout=500')).status).toBe(408);
  await statusBecomes(closing, 'DELIVERED');
  await statusBecomes(opening, 'FAILED');
  expect(JSON.stringify((await stored(opening))['response'])).toContain('no longer');
  // 403 when the call came after the device had moved.
  expect([403, 404]).toContain((await calling).status);

  const own = await newCustomerUser(second);
  const running = send('oneway', { method: 'own', timeout: 20_000 }, own.token);
  expect(received(await poll(devices[0]!, device)).method).toBe('own');
  expect((await running).status).toBe(200);
});

test('a persistent command may wait as long as it likes, and not longer', async () => {
  const device = await newDevice();
  const rpcId = await persistent(device.id, 'oneway', { method: 'm', timeout: Number.MAX_SAFE_INTEGER });
  expect((await sharedEngine().send('GET', `/api/rpc/persistent/${rpcId}`)).status).toBe(200);
  expect((await sharedEngine().send('DELETE', `/api/rpc/persistent/${rpcId}`)).status).toBe(200);
  for (const name of ['timeout', 'expirationTime']) {
    const body = { method: 'm', persistent: true, [name]: 2 ** 63 };
    const refused = await sharedEngine().send('POST', `/api/rpc/oneway/${device.id}`, body);
    expect(await refused.json()).toMatchObject({ status: 400, errorCode: 31, message: expect.stringContaining(name) });
  }
});

test('the persistent commands of a device are listed by page and status', async () => {
  const device = await newDevice();
  const expirationTime = Date.now() + 60_000;
  for (const method of ['a', 'b', 'c']) await persistent(device.id, 'oneway', { method, expirationTime });
  received(await poll(devices[0]!, device));
  const list = async (query: string) => {
    const answer = await sharedEngine().send('GET', `/api/rpc/persistent/device/${device.id}?${query}`);
    expect(answer.status).toBe(200);
    const page = (await answer.json()) as { data: { request: { body: { method: string } } }[]; totalElements: number };
    return [page.data.map(({ request }) => request.body.method).join(''), page.totalElements];
  };
  await eventually(async () => String(await list('pageSize=10&page=0&rpcStatus=DELIVERED')) === 'a,1');
  expect(await list('pageSize=10&page=0&rpcStatus=QUEUED')).toEqual(['bc', 2]);
  expect(await list('pageSize=2&page=0&sortProperty=createdTime&sortOrder=DESC')).toEqual(['cb', 3]);
  expect(await list('pageSize=2&page=1')).toEqual(['c', 3]);
  const refused = await sharedEngine().send(
    'GET',
    `/api/rpc/persistent/device/${device.id}?pageSize=10&page=0&rpcStatus=DELETED`,
  );
  expect(refused.status).toBe(400);
});

test('commands of one device fill its own share only, and leave it when their callers go', async () => {
  const [device, other] = [await newDevice(), await newDevice()];
  const token = await sharedEngine().adminToken();
  const body = JSON.stringify({ method: 'm', params: 'x'.repeat(60_000), timeout: 3_600_000 });
  const send = async (to: Device, signal: AbortSignal): Promise<number> => {
    const headers = { 'X-Authorization': `Bearer ${token}`, 'Content-Type': 'application/json' };
    const path = `${sharedEngine().http}/api/rpc/oneway/${to.id}`;
    const answer = await fetch(path, { method: 'POST', headers, body, signal });
    await answer.text();
    return answer.status;
  };
  // The count is that of all workers together; each worker has its own share.
  const callers = new AbortController();
  const statuses: number[] = [];
  for (let n = 0; n < 60; n += 1) {
    void send(device, callers.signal).then(
      (status) => statuses.push(status),
      () => {},
    );
  }
  await eventually(async () => (statuses.length > 0 ? true : undefined));
  expect(new Set(statuses)).toEqual(new Set([429]));
  // A command waits for its device, so an immediate answer would be a refusal.
  const fits = async (to: Device) => {
    const caller = AbortSignal.timeout(400);
    return await send(to, caller).catch((error: Error) => error.name);
  };
  expect(await fits(other)).toBe('TimeoutError');
  callers.abort();
  for (let n = 0; n < 6; n += 1) {
    expect(await eventually(async () => ((await fits(device)) === 'TimeoutError' ? true : undefined))).toBe(true);
  }
});
