/** Credentials of devices (docs/rest.md#credentials). */
import { randomUUID } from 'node:crypto';
import { expect, test } from 'vitest';
import { limits } from '../../../src/base/limits.ts';
import { newTenant, ok } from '../../harness/people.ts';
import { fault } from '../../harness/rest.ts';
import { newDevice, sharedEngine } from '../../harness/shared-engine.ts';

const post = (credentials: object) => ok('POST', '/api/device/credentials', credentials);
const of = (id: string) => ok('GET', `/api/device/${id}/credentials`);

test('the id of MQTT credentials is computed', async () => {
  const credentials = await of((await newDevice()).id);
  const unique = randomUUID();
  const f = async (value: object) => {
    const { version: _, ...current } = credentials;
    const given = {
      ...current,
      credentialsType: 'MQTT_BASIC',
      credentialsId: 'ignored',
      credentialsValue: JSON.stringify(value),
    };
    return await post(given);
  };
  const both = await f({ clientId: 'tank-client', userName: 'tank-user', password: 'p' });
  expect(both).toMatchObject({
    credentialsType: 'MQTT_BASIC',
    credentialsId: '09685a61189206cf1cd35cd5a54821bf58b0de5cdf9fe1bdcf3af677aaf9ff6b',
    version: 2,
  });
  expect(JSON.parse(both.credentialsValue)).toEqual({ clientId: 'tank-client', userName: 'tank-user', password: 'p' });
  expect(await f({ clientId: 'tank-client' })).toMatchObject({
    credentialsId: '70f3d0430ac52c70073db6692616152a96880c73d5fe8e73b871068a552bd66e',
  });
  expect(await f({ userName: unique })).toMatchObject({ credentialsId: unique });
});

test('faults of credentials are named', async () => {
  const credentials = await of((await newDevice()).id);
  const other = await newDevice();
  const f = (change: object) => fault('POST', '/api/device/credentials', { ...credentials, ...change });
  expect(await f({ credentialsType: null })).toBe('400/31 Device credentials type should be specified');
  expect(await f({ credentialsId: '' })).toBe('400/31 Device credentials id should be specified!');
  expect(await f({ credentialsId: other.token })).toBe(
    '400/31 These device credentials cannot be used: choose others.',
  );
  expect(await f({ id: { id: randomUUID() } })).toBe('400/31 Unable to update non-existent device credentials!');
  const basic = (value: object) => f({ credentialsType: 'MQTT_BASIC', credentialsValue: JSON.stringify(value) });
  expect(await basic({})).toBe('400/31 Both mqtt client id and user name are empty!');
  expect(await basic({ clientId: 'c', password: 'p' })).toBe(
    '400/31 Password cannot be specified along with client id',
  );
  expect(await f({ credentialsType: 'LWM2M_CREDENTIALS' })).toBe(
    '400/31 Credentials of type LWM2M_CREDENTIALS are not supported.',
  );
  expect(await of(credentials.deviceId.id)).toEqual(credentials);
});

test('another token works from then on, and the old one no more', async () => {
  const { id, token } = await newDevice();
  const api = sharedEngine();
  expect(await api.postTelemetry(token, '{"a":1}')).toBe(200);
  const next = randomUUID();
  await post({ ...(await of(id)), credentialsId: next });
  expect(await api.postTelemetry(next, '{"a":1}')).toBe(200);
  await api.telemetryBecomes(token, 401);
});

test('a device with other credentials than a token has no way in over HTTP', async () => {
  const { id, token } = await newDevice();
  const userName = randomUUID();
  await post({ ...(await of(id)), credentialsType: 'MQTT_BASIC', credentialsValue: JSON.stringify({ userName }) });
  await sharedEngine().telemetryBecomes(token, 401);
  expect(await sharedEngine().postTelemetry(userName, '{"a":1}')).toBe(401);
});

test('a device is created with credentials of any kind', async () => {
  const body = randomUUID().replaceAll('-', '');
  const pem = `-----BEGIN CERTIFICATE-----\n${body}\n-----END CERTIFICATE-----\n`;
  const created = await ok('POST', '/api/device-with-credentials', {
    device: { name: randomUUID() },
    credentials: { credentialsType: 'X509_CERTIFICATE', credentialsValue: pem },
  });
  const credentials = await of(created.id.id);
  expect(credentials).toMatchObject({ credentialsType: 'X509_CERTIFICATE', credentialsValue: pem });
  expect(credentials.credentialsId).toMatch(/^[0-9a-f]{64}$/);
  const twice = {
    device: { name: randomUUID() },
    credentials: { credentialsType: 'X509_CERTIFICATE', credentialsValue: body },
  };
  expect(await fault('POST', '/api/device-with-credentials', twice)).toBe(
    '400/31 These device credentials cannot be used: choose others.',
  );
});

test('a device and its credentials are replaced in one call', async () => {
  const { id, token } = await newDevice();
  const device = await ok('GET', `/api/device/${id}`);
  const next = randomUUID();
  const save = (name: string, credentialsId: string) => ({
    ...{
      device: { ...device, version: undefined, name },
      credentials: { credentialsType: 'ACCESS_TOKEN', credentialsId },
    },
  });
  const name = randomUUID();
  const saved = await ok('POST', '/api/device-with-credentials', save(name, next));
  expect(saved).toMatchObject({ id: { id }, name, version: 2, createdTime: device.createdTime });
  expect(await of(id)).toMatchObject({ credentialsId: next });
  expect(await sharedEngine().postTelemetry(next, '{"a":1}')).toBe(200);
  await sharedEngine().telemetryBecomes(token, 401);
  const same = save(device.name, next);
  expect(await ok('POST', '/api/device-with-credentials', same)).toMatchObject({ id: { id }, version: 3 });

  const refused = (body: object) => fault('POST', '/api/device-with-credentials', body);
  const { token: taken } = await newDevice();
  expect(await refused(save(name, taken))).toBe('400/31 These device credentials cannot be used: choose others.');
  expect(await refused({ ...same, device })).toMatch(/^409\/35 /);
  const unknown = randomUUID();
  expect(await refused({ ...same, device: { id: { id: unknown }, name } })).toBe(
    `404/32 Device with id [${unknown}] is not found`,
  );
  expect(await ok('GET', `/api/device/${id}`)).toMatchObject({ name: device.name, version: 3 });
  expect(await of(id)).toMatchObject({ credentialsId: next });
});

test('parallel calls at all workers learn no more taken tokens of another tenant than sequential ones', async () => {
  const { admin } = await newTenant();
  const taken = (await newDevice()).token;
  const create = async (accessToken: string) => {
    const path = `/api/device?accessToken=${accessToken}`;
    const { status } = await sharedEngine().send('POST', path, { name: randomUUID() }, admin.token);
    return status;
  };
  const calls = Array.from({ length: 80 }, (_, n) => create(n % 4 === 0 ? randomUUID() : taken));
  const statuses = await Promise.all(calls);
  const ofTaken = statuses.filter((_, n) => n % 4 !== 0);
  expect(ofTaken.filter((status) => status === 400)).toHaveLength(limits.takenNamesMax);
  expect(ofTaken.filter((status) => status === 429)).toHaveLength(ofTaken.length - limits.takenNamesMax);
  for (const status of statuses.filter((_, n) => n % 4 === 0)) expect([200, 429]).toContain(status);
  expect(await create(randomUUID())).toBe(429);
});
