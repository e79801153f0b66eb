/** `LIMITS_DEVICES` is exact over all doors and workers. */
import { afterAll, beforeAll, expect, test } from 'vitest';
import { type Engine, startEngine } from '../harness/engine.ts';
import type { MqttClient } from '../harness/mqtt-client.ts';
import { connectMqttOn } from '../harness/mqtt-workers.ts';
import { ok } from '../harness/people.ts';
import type { RawConnection } from '../harness/raw.ts';
import { connectToEachWorker, restOn } from '../harness/workers.ts';

/** The first device of a new instance, two gateways, and five more. */
const devicesMax = 8;
const [workers, secret] = [[0, 1], 's3-pump'];
let engine: Engine;
let http: RawConnection[];
const opened: MqttClient[] = [];

beforeAll(async () => {
  engine = await startEngine({
    workers: 2,
    env: { LIMITS_DEVICES: String(devicesMax), HTTP_TELL_WORKER: 'true' },
  });
  http = await connectToEachWorker(engine.port);
});

afterAll(async () => {
  for (const client of opened) client.cut();
  for (const connection of http ?? []) connection.close();
  await engine?.destroy();
});

const rest = (method: string, path: string, body?: unknown) => ok(method, path, body, undefined, engine.api);

async function names(): Promise<string[]> {
  const { data, totalElements } = await rest('GET', '/api/tenant/devices?pageSize=100&page=0');
  expect(data).toHaveLength(totalElements);
  return data.map(({ name }: { name: string }) => name);
}

async function open(worker: number, login: object): Promise<MqttClient> {
  const client = await connectMqttOn(worker, { port: engine.mqttPort, ...login });
  opened.push(client);
  return client;
}

test('of twenty that race over all doors and two workers exactly as many are made as there is room for', async () => {
  const type = 'ALLOW_CREATE_NEW_DEVICES';
  await rest('POST', '/api/deviceProfile', {
    name: 'provisioned',
    provisionType: type,
    provisionDeviceKey: 'key',
    profileData: { provisionConfiguration: { type, provisionDeviceSecret: secret } },
  });
  const tokens = ['gateway-0', 'gateway-1'];
  for (const token of tokens) {
    await rest('POST', `/api/device?accessToken=${token}`, { name: token, additionalInfo: { gateway: true } });
  }
  const gateways = await Promise.all(workers.map((worker) => open(worker, { token: tokens[worker] })));
  const provisioners = await Promise.all([0, 1, 0, 1, 0].map((worker) => open(worker, { username: 'provision' })));
  const admin = await engine.api.adminToken();
  const before = await names();
  expect(before).toHaveLength(devicesMax - 5);

  const request = (deviceName: string) => ({
    provisionDeviceKey: 'key',
    provisionDeviceSecret: secret,
    deviceName,
  });
  /**
   * Returns true when the device was made, and false when it was refused as it should be; any other answer fails the
   * test.
   */
  const decided = (answer: unknown, made: unknown, refused: unknown): boolean => {
    expect([made, refused]).toContainEqual(answer);
    return JSON.stringify(answer) === JSON.stringify(made);
  };
  const overRest = async (i: number) => {
    const body = JSON.stringify({ name: `rest-${i}` });
    const answer = await restOn(http[i % 2]!, admin, { path: '/api/device', body });
    const { status, errorCode } = JSON.parse(answer.body.toString()) as { status?: number; errorCode?: number };
    return decided([answer.status, status, errorCode], [200, undefined, undefined], [403, 403, 41]);
  };
  const overHttp = async (i: number) => {
    const answer = await fetch(`${engine.api.http}/api/v1/provision`, {
      method: 'POST',
      headers: { connection: 'close' },
      body: JSON.stringify(request(`http-${i}`)),
    });
    const { status } = (await answer.json()) as { status: string };
    return decided([answer.status, status], [200, 'SUCCESS'], [200, 'FAILURE']);
  };
  const overMqtt = async (i: number) => {
    const client = provisioners[i]!;
    await client.publish('/provision/request', request(`mqtt-${i}`));
    return decided((await client.message('/provision/response')).json.status, 'SUCCESS', 'FAILURE');
  };
  const overGateway = async (i: number) => {
    const ack = await gateways[i % 2]!.publish('v1/gateway/connect', { device: `child-${i}` });
    return decided(ack.reasonCode ?? 0, 0, 0x97);
  };
  const doors = [overRest, overHttp, overMqtt, overGateway];
  // REST calls take turns on one connection; the other calls run at once.
  const restInTurn = [0, 1].map(async (worker) => {
    const made: boolean[] = [];
    for (let i = worker; i < 5; i += 2) made.push(await overRest(i));
    return made;
  });
  const others = doors.slice(1).flatMap((door) => [0, 1, 2, 3, 4].map(async (i) => [await door(i)]));
  const made = (await Promise.all([...restInTurn, ...others])).flat();
  expect(made).toHaveLength(20);
  expect(made.filter((each) => each)).toHaveLength(5);
  expect(await names()).toHaveLength(devicesMax);
});

test('a refusal names the setting, and room that becomes free can be used', async () => {
  const refused = await engine.api.send('POST', '/api/device', { name: 'one too many' });
  expect(refused.status).toBe(403);
  expect(await refused.json()).toMatchObject({
    errorCode: 41,
    message: expect.stringContaining('LIMITS_DEVICES'),
    entityType: 'DEVICE',
    limit: devicesMax,
  });
  const { data } = await rest('GET', '/api/tenant/devices?pageSize=1&page=0');
  expect((await engine.api.send('DELETE', `/api/device/${data[0].id.id}`)).status).toBe(200);
  await rest('POST', '/api/device', { name: 'one more' });
  expect(await names()).toHaveLength(devicesMax);
  // A device that exists is not made again.
  await rest('POST', '/api/device', {
    ...(await rest('GET', '/api/tenant/devices?deviceName=one%20more')),
    label: 'x',
  });
});

test('a gateway that names more new devices than there is room for gets the first ones, and a reason for the others', async () => {
  const { data } = await rest('GET', '/api/tenant/devices?pageSize=100&page=0');
  const spare = data.filter(({ name }: { name: string }) => !name.startsWith('gateway-')).slice(0, 2);
  for (const { id } of spare) await engine.api.send('DELETE', `/api/device/${id.id}`);
  const body = Object.fromEntries(['a', 'b', 'c', 'd'].map((name) => [`bulk-${name}`, [{ values: { n: 1 } }]]));
  const gateway = await open(0, { token: 'gateway-0' });
  const ack = await gateway.publish('v1/gateway/telemetry', body);
  expect(ack.reasonCode).toBe(0x97);
  expect(ack.properties?.reasonString).toContain('bulk-c');
  const made = (await names()).filter((name) => name.startsWith('bulk-')).sort();
  expect(made).toEqual(['bulk-a', 'bulk-b']);
});

test('a list of devices to create whose first names are taken still gets the room that is left', async () => {
  const [taken, spare] = [await names(), await rest('GET', '/api/tenant/devices?deviceName=bulk-a')];
  expect((await engine.api.send('DELETE', `/api/device/${spare.id.id}`)).status).toBe(200);
  const wanted = [...taken.filter((name) => name !== 'bulk-a'), 'last', 'one too many'];
  const create = async () => {
    const body = { devices: wanted.map((name) => ({ name, type: 'default' })) };
    const { results } = await rest('POST', '/api/devices/bulk', body);
    return results.map(({ error }: { error: string | null }) => error);
  };
  const [exists, limit] = ['Device with such name already exists!', expect.stringContaining('LIMITS_DEVICES')];
  const others = Array.from({ length: devicesMax - 1 }, () => exists);
  expect(await create()).toEqual([...others, null, limit]);
  expect(await names()).toHaveLength(devicesMax);
  // The same call again, as after a lost answer.
  expect(await create()).toEqual([...others, exists, limit]);
});
