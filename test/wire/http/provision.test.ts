/** POST /api/v1/provision (docs/http.md#provisioning). */
import { randomUUID } from 'node:crypto';
import { expect, test } from 'vitest';
import { CertificateMaker } from '../../harness/certificates.ts';
import { newCustomer, newCustomerUser, ok } from '../../harness/people.ts';
import { faultOf } from '../../harness/rest.ts';
import { newDevice, sharedEngine } from '../../harness/shared-engine.ts';

interface Profile {
  id: { id: string };
  name: string;
  provisionDeviceKey: string;
}

const failure = { errorMsg: 'Failed to provision device!', status: 'FAILURE' };
const notFound = { errorMsg: 'Provision data was not found!', status: 'NOT_FOUND' };
const secret = 's3-pump';

async function newProfile(
  type = 'ALLOW_CREATE_NEW_DEVICES',
  provisionDeviceSecret: string | null = secret,
): Promise<Profile> {
  const unique = randomUUID();
  return await ok('POST', '/api/deviceProfile', {
    name: `pump-${unique}`,
    provisionType: type,
    provisionDeviceKey: `k-${unique}`,
    profileData: { provisionConfiguration: { type, provisionDeviceSecret } },
  });
}

function post(body: unknown): Promise<Response> {
  return fetch(`${sharedEngine().http}/api/v1/provision`, {
    method: 'POST',
    body: typeof body === 'string' ? body : JSON.stringify(body),
  });
}

/** Every outcome is answered with 200. */
// biome-ignore lint/suspicious/noExplicitAny: the tests look at members freely
async function provision(profile: Profile, members: object = {}): Promise<any> {
  const response = await post({
    provisionDeviceKey: profile.provisionDeviceKey,
    provisionDeviceSecret: secret,
    ...members,
  });
  expect(response.status).toBe(200);
  expect(response.headers.get('content-type')).toBe('application/json');
  return await response.json();
}

const deviceNamed = (name: string) => ok('GET', `/api/tenant/devices?deviceName=${encodeURIComponent(name)}`);

test('a device with key and secret is created, and its token works at once', async () => {
  const profile = await newProfile();
  const deviceName = `pump-${randomUUID()}`;
  const answer = await provision(profile, { deviceName });
  expect(answer).toEqual({
    credentialsValue: expect.stringMatching(/^[A-Za-z0-9]{20}$/),
    credentialsType: 'ACCESS_TOKEN',
    status: 'SUCCESS',
  });
  expect(await sharedEngine().postTelemetry(answer.credentialsValue, '{"a":1}')).toBe(200);
  expect(await deviceNamed(deviceName)).toMatchObject({ type: profile.name, deviceProfileId: profile.id });
});

test('a device that gives no name gets one of 20 characters', async () => {
  const profile = await newProfile();
  expect(await provision(profile)).toMatchObject({ status: 'SUCCESS' });
  const { data } = await ok('GET', `/api/tenant/devices?pageSize=10&page=0&type=${profile.name}`);
  expect(data.map((device: { name: string }) => device.name)).toEqual([expect.stringMatching(/^[A-Za-z0-9]{20}$/)]);
});

test('a name that is taken is a failure', async () => {
  const profile = await newProfile();
  const deviceName = `pump-${randomUUID()}`;
  await provision(profile, { deviceName });
  expect(await provision(profile, { deviceName: ` ${deviceName} ` })).toEqual(failure);
  expect(await provision(profile, { deviceName: '  ' })).toEqual(failure);
});

test('of many that provision one name at once, one succeeds and the device is there once', async () => {
  const profile = await newProfile();
  const deviceName = `pump-${randomUUID()}`;
  const answers = await Promise.all(Array.from({ length: 8 }, () => provision(profile, { deviceName })));
  expect(answers.filter(({ status }) => status === 'SUCCESS')).toHaveLength(1);
  expect(answers.filter(({ status }) => status === 'FAILURE')).toHaveLength(7);
  const { data } = await ok('GET', `/api/tenant/devices?pageSize=10&page=0&type=${profile.name}`);
  expect(data).toHaveLength(1);
});

test('a wrong key and a wrong secret are answered alike', async () => {
  const profile = await newProfile();
  expect(await provision(profile, { provisionDeviceSecret: 'wrong' })).toEqual(notFound);
  expect(await provision(profile, { provisionDeviceKey: `k-${randomUUID()}` })).toEqual(notFound);
  expect(await provision(profile, { provisionDeviceSecret: '' })).toEqual(notFound);
});

test('a profile that is not provisioned from finds nothing', async () => {
  const disabled = await newProfile('DISABLED');
  expect(await provision(disabled)).toEqual(notFound);
  const withoutSecret = await newProfile('DISABLED', null);
  expect(await provision(withoutSecret, { provisionDeviceSecret: '' })).toEqual(notFound);
  const maker = new CertificateMaker();
  const chain = await newProfile('X509_CERTIFICATE_CHAIN', maker.make('issuer', { isIssuer: true }).cert);
  maker.remove();
  expect(chain.provisionDeviceKey).toMatch(/^[0-9a-f]{64}$/);
  expect(await provision(chain)).toEqual(notFound);
});

test('MQTT credentials are an object of the members that the device gave', async () => {
  const profile = await newProfile();
  const [clientId, username] = [randomUUID(), randomUUID()];
  const members = { credentialsType: 'MQTT_BASIC', clientId, username, password: 'p', deviceName: clientId };
  expect(await provision(profile, members)).toEqual({
    credentialsValue: { clientId, userName: username, password: 'p' },
    credentialsType: 'MQTT_BASIC',
    status: 'SUCCESS',
  });
  const { id } = await deviceNamed(clientId);
  const credentials = await ok('GET', `/api/device/${id.id}/credentials`);
  expect(JSON.parse(credentials.credentialsValue)).toEqual({ clientId, userName: username, password: 'p' });
  expect(await provision(profile, { credentialsType: 'MQTT_BASIC', clientId: randomUUID(), password: 'p' })).toEqual(
    failure,
  );
  expect(await provision(profile, { credentialsType: 'MQTT_BASIC', username: null })).toEqual(failure);
});

test('a certificate comes back as it was given', async () => {
  const profile = await newProfile();
  const hash = `-----BEGIN CERTIFICATE-----\n${randomUUID()}\n-----END CERTIFICATE-----\n`;
  expect(await provision(profile, { credentialsType: 'X509_CERTIFICATE', hash })).toEqual({
    credentialsValue: hash,
    credentialsType: 'X509_CERTIFICATE',
    status: 'SUCCESS',
  });
  expect(await provision(profile, { credentialsType: 'X509_CERTIFICATE' })).toEqual(failure);
});

test('a device may choose its token', async () => {
  const profile = await newProfile();
  const token = randomUUID();
  expect(await provision(profile, { token })).toMatchObject({ credentialsValue: token, status: 'SUCCESS' });
  expect(await sharedEngine().postTelemetry(token, '{"a":1}')).toBe(200);
});

test('a token in use is a failure, and no device comes of it', async () => {
  const profile = await newProfile();
  const { token } = await newDevice();
  expect(await provision(profile, { token })).toEqual(failure);
  const { totalElements } = await ok('GET', `/api/tenant/devices?pageSize=1&page=0&type=${profile.name}`);
  expect(totalElements).toBe(0);
});

test('a request that is none is refused without an echo', async () => {
  const f = async (body: string) => {
    const response = await post(body);
    expect(response.status).toBe(400);
    const copy = response.clone();
    expect(await copy.text()).not.toContain('hush');
    return await faultOf(response);
  };
  expect(await f('{"provisionDeviceKey":"hush"}')).toBe('400/31 Member "provisionDeviceSecret" is missing.');
  expect(await f('{"provisionDeviceSecret":"hush","provisionDeviceKey":null}')).toBe(
    '400/31 Member "provisionDeviceKey" is missing.',
  );
  expect(await f('{"provisionDeviceSecret":"hush"')).toBe('400/31 The body is not valid JSON.');
  expect(await f('["hush"]')).toBe('400/31 A provisioning request must be a JSON object.');
  expect(await f('')).toBe('400/31 Required request body is missing');
  expect(await f('{"provisionDeviceKey":"hush","provisionDeviceSecret":"hush","credentialsType":"hush"}')).toBe(
    '400/31 Member "credentialsType" must be one of ACCESS_TOKEN, MQTT_BASIC, X509_CERTIFICATE.',
  );
});

test('gateway true marks the device as a gateway', async () => {
  const profile = await newProfile();
  const deviceName = `gate-${randomUUID()}`;
  await provision(profile, { deviceName, gateway: true });
  expect(await deviceNamed(deviceName)).toMatchObject({ additionalInfo: { gateway: true } });
});

test('a device that a user made gets its own credentials, once', async () => {
  const profile = await newProfile('CHECK_PRE_PROVISIONED_DEVICES');
  const name = `pump-${randomUUID()}`;
  const token = randomUUID();
  const device = await ok('POST', `/api/device?accessToken=${token}`, { name, type: profile.name });
  const answers = await Promise.all([1, 2, 3].map(() => provision(profile, { deviceName: name })));
  expect(answers.filter(({ status }) => status === 'SUCCESS')).toEqual([
    { credentialsValue: token, credentialsType: 'ACCESS_TOKEN', status: 'SUCCESS' },
  ]);
  expect(answers.filter(({ status }) => status === 'FAILURE')).toHaveLength(2);
  const path = `/api/plugins/telemetry/DEVICE/${device.id.id}/values/attributes/SERVER_SCOPE?keys=provisionState`;
  expect(await ok('GET', path)).toMatchObject([{ key: 'provisionState', value: 'provisioned' }]);
});

test('a device that a user made must be there, and of this profile', async () => {
  const profile = await newProfile('CHECK_PRE_PROVISIONED_DEVICES');
  const other = await newDevice();
  expect(await provision(profile, { deviceName: `pump-${randomUUID()}` })).toEqual(failure);
  expect(await provision(profile)).toEqual(failure);
  const { name } = await ok('GET', `/api/device/${other.id}`);
  expect(await provision(profile, { deviceName: name })).toEqual(failure);
});

test('a former customer opens no second provisioning: the new token after a rotation stays the tenant’s', async () => {
  const profile = await newProfile('CHECK_PRE_PROVISIONED_DEVICES');
  const name = `pump-${randomUUID()}`;
  const { id } = await ok('POST', '/api/device', { name, type: profile.name });
  const customer = await newCustomer();
  await ok('POST', `/api/customer/${customer}/device/${id.id}`);
  expect(await provision(profile, { deviceName: name })).toMatchObject({ status: 'SUCCESS' });
  const { token } = await newCustomerUser(customer);
  const path = `/api/plugins/telemetry/DEVICE/${id.id}/SERVER_SCOPE`;
  for (const [method, query, body] of [
    ['DELETE', '?keys=provisionState', undefined],
    ['DELETE', '?keys=floor,provisionState', undefined],
    ['POST', '', { provisionState: 'new' }],
  ] as const) {
    expect((await sharedEngine().send(method, `${path}${query}`, body, token)).status).toBe(403);
  }
  await ok('POST', path, { floor: 3 }, token);
  await ok('DELETE', `${path}?keys=floor`, undefined, token);
  await ok('DELETE', `/api/customer/device/${id.id}?rotateToken=true`);
  expect(await provision(profile, { deviceName: name })).toEqual(failure);
  await ok('DELETE', `${path}?keys=provisionState`);
  expect(await provision(profile, { deviceName: name })).toMatchObject({ status: 'SUCCESS' });
});

test('a request of 32 KiB, with a long certificate, is read, and a longer one is 413', async () => {
  const { provisionDeviceKey } = await newProfile();
  const request = (bytes: number) => {
    const body = { deviceName: `long-${randomUUID()}`, provisionDeviceKey, provisionDeviceSecret: secret, spare: '' };
    return JSON.stringify({ ...body, spare: 'x'.repeat(bytes - JSON.stringify(body).length) });
  };
  const longest = await post(request(32 * 1024));
  expect(await longest.json()).toMatchObject({ status: 'SUCCESS' });
  expect(await faultOf(await post(request(32 * 1024 + 1)))).toMatch(/^413\/31 Payload size exceeds the limit of 32768/);
});
