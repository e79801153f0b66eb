/**
 * Whole answers of the REST API: each has exactly these members, in this order where a text is compared. The test
 * inserts the values that differ between runs (ids, times, tokens).
 */
import { randomUUID } from 'node:crypto';
import { beforeAll, expect, test } from 'vitest';
import { eventually } from '../../harness/api.ts';
import { newTenant, ok, type Person } from '../../harness/people.ts';
import { newDevice, sharedEngine } from '../../harness/shared-engine.ts';

const nobody = { entityType: 'CUSTOMER', id: '13814000-1dd2-11b2-8080-808080808080' };
let admin: Person;
let tenantId: object;

beforeAll(async () => {
  const tenant = await newTenant();
  admin = tenant.admin;
  tenantId = { entityType: 'TENANT', id: tenant.id };
});

const call = (method: string, path: string, body?: unknown) => ok(method, path, body, admin.token);

/** Compares two values member by member, including the order. */
function exactly(actual: unknown, expected: unknown): void {
  expect(JSON.stringify(actual, null, 1)).toBe(JSON.stringify(expected, null, 1));
}

test('a pair of tokens', async () => {
  const { email, password } = admin;
  const pair = await ok('POST', '/api/auth/login', { username: email, password }, '');
  exactly(pair, { token: pair.token, refreshToken: pair.refreshToken });
});

test('an API key', async () => {
  const userId = { entityType: 'USER', id: admin.id };
  const key = await call('POST', '/api/apiKey', {
    userId,
    description: 'orchard feed',
    enabled: true,
    expirationTime: 0,
  });
  const { id, createdTime, value } = key;
  exactly(key, {
    id: { entityType: 'API_KEY', id: id.id },
    createdTime,
    tenantId,
    userId,
    expirationTime: 0,
    description: 'orchard feed',
    enabled: true,
    expired: false,
    value,
  });
});

test('an error', async () => {
  const id = randomUUID();
  const response = await sharedEngine().send('GET', `/api/device/${id}`, undefined, admin.token);
  const error = (await response.json()) as { timestamp: number };
  exactly(error, {
    status: 404,
    message: `Device with id [${id}] is not found`,
    errorCode: 32,
    timestamp: error.timestamp,
  });
  expect(typeof error.timestamp).toBe('number');
});

test('a page', async () => {
  const page = await call('GET', '/api/customers?pageSize=2&page=9');
  exactly(page, { data: [], totalPages: 0, totalElements: 0, hasNext: false });
});

test('a device', async () => {
  const token = randomUUID();
  const additionalInfo = { gateway: false, description: 'well' };
  const body = { name: 'pump-7', type: 'pump', label: 'North field', additionalInfo };
  const device = await call('POST', `/api/device?accessToken=${token}`, body);
  const { id, createdTime, deviceProfileId } = device;
  const expected = {
    id: { entityType: 'DEVICE', id: id.id },
    createdTime,
    tenantId,
    customerId: nobody,
    name: 'pump-7',
    type: 'pump',
    label: 'North field',
    deviceProfileId: { entityType: 'DEVICE_PROFILE', id: deviceProfileId.id },
    deviceData: { configuration: { type: 'DEFAULT' }, transportConfiguration: { type: 'DEFAULT' } },
    firmwareId: null,
    softwareId: null,
    externalId: null,
    version: 1,
    additionalInfo,
  };
  exactly(device, expected);
  const info = await call('GET', `/api/device/info/${id.id}`);
  const rest = { customerTitle: null, customerIsPublic: false, deviceProfileName: 'pump', active: false };
  exactly(info, { ...expected, ...rest });
  const credentials = await call('GET', `/api/device/${id.id}/credentials`);
  exactly(credentials, {
    id: { id: credentials.id.id },
    createdTime: credentials.createdTime,
    deviceId: id,
    credentialsType: 'ACCESS_TOKEN',
    credentialsId: token,
    credentialsValue: null,
    version: 1,
  });
});

test('a device profile', async () => {
  const profileData = {
    configuration: { type: 'DEFAULT' },
    transportConfiguration: { type: 'DEFAULT' },
    provisionConfiguration: { type: 'ALLOW_CREATE_NEW_DEVICES', provisionDeviceSecret: 's3-pump' },
    alarms: null,
  };
  const provisionDeviceKey = randomUUID();
  const provisionType = 'ALLOW_CREATE_NEW_DEVICES';
  const body = { name: 'pump-profile', provisionType, profileData, provisionDeviceKey };
  const profile = await call('POST', '/api/deviceProfile', body);
  const { id, createdTime } = profile;
  const expected = {
    id: { entityType: 'DEVICE_PROFILE', id: id.id },
    createdTime,
    tenantId,
    name: 'pump-profile',
    description: null,
    image: null,
    default: false,
    type: 'DEFAULT',
    transportType: 'DEFAULT',
    provisionType,
    defaultRuleChainId: null,
    defaultDashboardId: null,
    defaultQueueName: null,
    profileData,
    provisionDeviceKey,
    firmwareId: null,
    softwareId: null,
    defaultEdgeRuleChainId: null,
    externalId: null,
    version: 1,
  };
  expect(profile.profileData).toEqual(profileData);
  exactly({ ...profile, profileData }, expected);
  const info = await call('GET', `/api/deviceProfileInfo/${id.id}`);
  const { name, image, defaultDashboardId, type, transportType } = expected;
  exactly(info, { id: expected.id, name, image, defaultDashboardId, type, transportType, tenantId });
});

test('a customer', async () => {
  const customer = await call('POST', '/api/customer', { title: 'Orchard', city: 'Kyiv' });
  const contact = { country: null, state: null, city: 'Kyiv', address: null, address2: null, zip: null };
  exactly(customer, {
    id: { entityType: 'CUSTOMER', id: customer.id.id },
    createdTime: customer.createdTime,
    title: 'Orchard',
    tenantId,
    ...contact,
    phone: null,
    email: null,
    version: 1,
    externalId: null,
    name: 'Orchard',
    additionalInfo: null,
  });
  exactly(await call('GET', `/api/customer/${customer.id.id}/shortInfo`), { title: 'Orchard', isPublic: false });
  expect(await call('GET', `/api/customer/${customer.id.id}/title`)).toBe('Orchard');
});

test('attributes and telemetry', async () => {
  const api = sharedEngine();
  const { id } = await newDevice();
  const prefix = `/api/plugins/telemetry/DEVICE/${id}`;
  await ok('POST', `${prefix}/SERVER_SCOPE`, '{"level":42.0,"fwHint":"x"}');
  expect(await ok('GET', `${prefix}/keys/attributes/SERVER_SCOPE`)).toEqual(
    expect.arrayContaining(['fwHint', 'level']),
  );
  const response = await api.send('GET', `${prefix}/values/attributes/SERVER_SCOPE?keys=level`);
  const text = await response.text();
  const [{ lastUpdateTs }] = JSON.parse(text) as [{ lastUpdateTs: number }];
  expect(text).toBe(`[{"lastUpdateTs":${lastUpdateTs},"key":"level","value":42.0}]`);
  await ok('POST', `${prefix}/timeseries/ANY`, '{"ts":1760000000123,"values":{"flow":3.5}}');
  const latest = await eventually(async () => {
    const text = await (await api.send('GET', `${prefix}/values/timeseries?keys=flow`)).text();
    return text.includes('null') ? undefined : text;
  }, 15_000);
  expect(latest).toBe('{"flow":[{"ts":1760000000123,"value":"3.5"}]}');
});

test('a persistent command', async () => {
  const device = await call('POST', '/api/device', { name: 'gate' });
  const expirationTime = Date.now() + 60_000;
  const command = { method: 'setGate', params: { open: true }, expirationTime, persistent: true, retries: 3 };
  const answer = await call('POST', `/api/rpc/twoway/${device.id.id}`, {
    ...command,
    additionalInfo: { by: 'night job' },
  });
  exactly(answer, { rpcId: answer.rpcId });
  const rpc = await call('GET', `/api/rpc/persistent/${answer.rpcId}`);
  exactly(rpc, {
    id: { entityType: 'RPC', id: answer.rpcId },
    createdTime: rpc.createdTime,
    tenantId,
    deviceId: device.id,
    expirationTime,
    request: {
      id: answer.rpcId,
      tenantId,
      deviceId: device.id,
      oneway: false,
      expirationTime,
      body: { method: 'setGate', params: '{"open":true}' },
      persisted: true,
      retries: 3,
    },
    response: null,
    status: 'QUEUED',
    additionalInfo: { by: 'night job' },
  });
});

test('a package', async () => {
  const profiles = await call('GET', '/api/deviceProfiles?pageSize=1&page=0');
  const deviceProfileId = profiles.data[0].id;
  const described = { type: 'FIRMWARE', title: 'pumpfw', version: '2.1', tag: 'pumpfw 2.1', usesUrl: false, url: null };
  const found = await call('POST', '/api/otaPackage', { deviceProfileId, ...described, additionalInfo: null });
  exactly(found, {
    id: { entityType: 'OTA_PACKAGE', id: found.id.id },
    createdTime: found.createdTime,
    tenantId,
    deviceProfileId,
    type: 'FIRMWARE',
    title: 'pumpfw',
    version: '2.1',
    tag: 'pumpfw 2.1',
    url: null,
    hasData: false,
    fileName: null,
    contentType: null,
    checksumAlgorithm: null,
    checksum: null,
    dataSize: null,
    externalId: null,
    name: 'pumpfw',
    additionalInfo: null,
  });
});

test('a user, and the link to a password', async () => {
  const email = `${randomUUID()}@orchard.example`;
  const user = await call('POST', '/api/user?sendActivationMail=false', { email, authority: 'TENANT_ADMIN' });
  exactly(user, {
    id: { entityType: 'USER', id: user.id.id },
    createdTime: user.createdTime,
    tenantId,
    customerId: nobody,
    email,
    authority: 'TENANT_ADMIN',
    firstName: null,
    lastName: null,
    phone: null,
    version: 1,
    name: email,
    additionalInfo: null,
  });
  const info = await call('GET', `/api/user/${user.id.id}/activationLinkInfo`);
  exactly(info, { value: info.value, ttlMs: info.ttlMs });
});
