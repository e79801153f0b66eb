/**
 * Tenant profiles (docs/rest.md#tenant-profiles): how a system administrator manages them, and that each limit holds
 * for the tenants of the profile, and for no other tenant, as soon as it is saved.
 */
import { randomUUID } from 'node:crypto';
import { expect, test } from 'vitest';
import { eventually } from '../../harness/api.ts';
import { connectMqtt } from '../../harness/mqtt-client.ts';
import { newTenant, newUser, ok, systemAdminToken } from '../../harness/people.ts';
import { fault } from '../../harness/rest.ts';
import { sharedEngine } from '../../harness/shared-engine.ts';

// biome-ignore lint/suspicious/noExplicitAny: the tests look at members freely
type Json = any;

async function newProfile(configuration: object = {}, name = `profile-${randomUUID()}`): Promise<Json> {
  const profile = { name, description: 'of a test', profileData: { configuration } };
  return await ok('POST', '/api/tenantProfile', profile, await systemAdminToken());
}

async function save(profile: Json, configuration: object): Promise<Json> {
  const profileData = { ...profile.profileData, configuration };
  const { version, ...members } = profile;
  return await ok('POST', '/api/tenantProfile', { ...members, profileData }, await systemAdminToken());
}

/**
 * Gives the tenant the profile. The worker that saves uses the limits when it answers, the other one when the bus has
 * delivered the change.
 */
async function give(tenantId: string, profile: Json): Promise<Json> {
  const system = await systemAdminToken();
  const { version, ...tenant } = await ok('GET', `/api/tenant/${tenantId}`, undefined, system);
  return await ok('POST', '/api/tenant', { ...tenant, tenantProfileId: profile.id }, system);
}

async function tenantWith(configuration: object) {
  const profile = await newProfile(configuration);
  const tenant = await newTenant();
  await give(tenant.id, profile);
  const device = await ok('POST', '/api/device', { name: `pump-${randomUUID()}` }, tenant.admin.token);
  const credentials = await ok('GET', `/api/device/${device.id.id}/credentials`, undefined, tenant.admin.token);
  return { profile, tenant, admin: tenant.admin.token, device, token: credentials.credentialsId as string };
}

test('a profile is created, changed, listed and deleted; a tenant has one', async () => {
  const system = await systemAdminToken();
  const profile = await newProfile({ maxDevices: 7 });
  expect(profile).toEqual({
    id: { entityType: 'TENANT_PROFILE', id: expect.any(String) },
    createdTime: expect.any(Number),
    name: profile.name,
    description: 'of a test',
    isolatedTbRuleEngine: false,
    default: false,
    profileData: { configuration: { type: 'DEFAULT', maxDevices: 7 }, queueConfiguration: null },
    version: 1,
  });
  const path = `/api/tenantProfile/${profile.id.id}`;
  expect(await ok('GET', path, undefined, system)).toEqual(profile);
  const info = { id: profile.id, name: profile.name };
  expect(await ok('GET', `/api/tenantProfileInfo/${profile.id.id}`, undefined, system)).toEqual(info);
  for (const list of ['tenantProfiles', 'tenantProfileInfos']) {
    const query = `pageSize=5&page=0&textSearch=${profile.name.slice(3).toUpperCase()}&sortProperty=name`;
    const page = await ok('GET', `/api/${list}?${query}`, undefined, system);
    expect(page.data).toEqual([list === 'tenantProfiles' ? profile : info]);
  }
  expect(await ok('GET', `/api/tenantProfiles/list?ids=${profile.id.id}`, undefined, system)).toEqual([profile]);

  const changed = await save(profile, { maxDevices: 8, other: ['kept'] });
  expect(changed).toMatchObject({ version: 2, profileData: { configuration: { maxDevices: 8, other: ['kept'] } } });
  expect(await fault('POST', '/api/tenantProfile', profile, system)).toMatch(/^409\//);
  expect(await fault('POST', '/api/tenantProfile', { name: profile.name }, system)).toBe(
    '400/31 Tenant profile with such name already exists!',
  );

  const tenant = await newTenant();
  const given = await give(tenant.id, profile);
  expect(given.tenantProfileId).toEqual(profile.id);
  const named = await ok('GET', `/api/tenant/info/${tenant.id}`, undefined, tenant.admin.token);
  expect(named.tenantProfileName).toBe(profile.name);
  const { version, tenantProfileId, ...rest } = given;
  expect((await ok('POST', '/api/tenant', rest, system)).tenantProfileId).toEqual(profile.id);
  expect(await fault('DELETE', path, undefined, system)).toBe(
    '400/31 The tenant profile referenced by the tenants cannot be deleted!',
  );
  await ok('DELETE', `/api/tenant/${tenant.id}`, undefined, system);
  await ok('DELETE', path, undefined, system);
  expect(await fault('GET', path, undefined, system)).toMatch(/^404\//);
});

test('what is no limit is refused, and names its member', async () => {
  const system = await systemAdminToken();
  const refused = async (configuration: unknown) =>
    await fault('POST', '/api/tenantProfile', { name: randomUUID(), profileData: { configuration } }, system);
  expect(await refused({ maxDevices: -1 })).toMatch(/^400\/31 .*maxDevices must be a whole number from 0/);
  expect(await refused({ maxUsers: 1.5 })).toMatch(/maxUsers/);
  expect(await refused({ maxCustomers: '3' })).toMatch(/maxCustomers/);
  expect(await refused({ defaultStorageTtlDays: 36_501 })).toMatch(/defaultStorageTtlDays .* to 36500/);
  expect(await refused({ transportDeviceMsgRateLimit: '5' })).toMatch(
    /transportDeviceMsgRateLimit must be empty or like/,
  );
  expect(await refused({ tenantServerRestLimitsConfiguration: 5 })).toMatch(/tenantServerRestLimitsConfiguration/);
  expect(await refused({ type: 'OTHER' })).toMatch(/DEFAULT/);
  expect(await refused([])).toMatch(/must be an object/);
  expect(await fault('POST', '/api/tenantProfile', { name: ' ' }, system)).toMatch(/name should be specified/);
  const isolated = { name: randomUUID(), isolatedTbRuleEngine: true };
  expect(await fault('POST', '/api/tenantProfile', isolated, system)).toMatch(/isolatedTbRuleEngine/);
});

test('a tenant has no more devices, users and customers than its profile says, until the profile says more', async () => {
  const { profile, admin } = await tenantWith({ maxDevices: 2, maxUsers: 1, maxCustomers: 1 });
  const device = () => ({ name: `lamp-${randomUUID()}` });
  const customer = () => ({ title: `orchard-${randomUUID()}` });
  const user = () => ({ email: `${randomUUID()}@orchard.example`, authority: 'TENANT_ADMIN' });
  const send = async (path: string, body: object) => {
    const answer = await sharedEngine().send('POST', path, body, admin);
    return { status: answer.status, ...((await answer.json()) as Json) };
  };
  await ok('POST', '/api/device', device(), admin);
  await ok('POST', '/api/customer', customer(), admin);
  const full = (entityType: string, limit: number, noun: string) => ({
    ...{ status: 403, errorCode: 41, entityType, limit, timestamp: expect.any(Number) },
    message: expect.stringMatching(new RegExp(`^${noun} limit reached: a tenant may have ${limit} \\(.*max${noun} `)),
  });
  await expect.poll(() => send('/api/device', device())).toEqual(full('DEVICE', 2, 'Devices'));
  await expect.poll(() => send('/api/customer', customer())).toEqual(full('CUSTOMER', 1, 'Customers'));
  await expect.poll(() => send('/api/user?sendActivationMail=false', user())).toEqual(full('USER', 1, 'Users'));
  const bulk = await ok('POST', '/api/devices/bulk', { devices: [device(), device()] }, admin);
  expect(bulk.results.map(({ error }: Json) => /Devices limit/.test(JSON.stringify(error)))).toEqual([true, true]);
  await save(profile, { maxDevices: 9, maxUsers: 9 });
  // Any worker may get these calls: the other one receives the change over the bus.
  await eventually(async () => (await sharedEngine().send('POST', '/api/device', device(), admin)).status === 200);
  await eventually(async () => (await sharedEngine().send('POST', '/api/customer', customer(), admin)).status === 200);
  await newUser({ authority: 'TENANT_ADMIN' }, sharedEngine(), admin);
});

test('a gateway of a tenant that has all of its devices makes no device, and no profile for one', async () => {
  const { profile, admin } = await tenantWith({ maxDevices: 2 });
  const hub = await ok('POST', '/api/device', { name: randomUUID(), additionalInfo: { gateway: true } }, admin);
  const { credentialsId } = await ok('GET', `/api/device/${hub.id.id}/credentials`, undefined, admin);
  const client = await connectMqtt({ token: credentialsId });
  try {
    const connected = async (type: string) => {
      const ack = await client.publish('v1/gateway/connect', JSON.stringify({ device: randomUUID(), type }));
      return ack.reasonCode === 0;
    };
    const profiles = async () =>
      (await ok('GET', '/api/deviceProfile/names', undefined, admin)).map(({ name }: Json) => name);
    expect(await connected('tree')).toBe(false);
    expect(await profiles()).toEqual(['default']);
    await save(profile, { maxDevices: 3 });
    await eventually(() => connected('tree'));
    expect((await profiles()).sort()).toEqual(['default', 'tree']);
  } finally {
    client.cut();
  }
});

test('messages above the rate of the profile are refused by its name, those of another tenant are not', async () => {
  const { profile, token, admin, device } = await tenantWith({ transportDeviceTelemetryMsgRateLimit: '3:3600' });
  const post = (to: string) => sharedEngine().send('POST', `/api/v1/${to}/telemetry`, { k: 1 }, '');
  await eventually(async () => {
    const answer = await post(token);
    if (answer.status !== 429) return false;
    expect(((await answer.json()) as Json).message).toBe(
      'Too many requests for current device! The limit is 3 telemetry messages in 3600 s ' +
        `(transportDeviceTelemetryMsgRateLimit of tenant profile "${profile.name}").`,
    );
    return true;
  });
  const other = await tenantWith({});
  for (let n = 0; n < 10; n += 1) expect((await post(other.token)).status).toBe(200);

  const { rateLimits } = await ok('GET', `/api/device/${device.id.id}/diagnostics`, undefined, admin);
  expect(rateLimits).toMatchObject([{ capacity: 3, seconds: 3600 }]);
  const client = await connectMqtt({ token });
  await client.subscribe('v1/devices/me/rpc/response/+');
  await client.publish('v1/devices/me/rpc/request/1', '{"method":"getSessionLimits","params":{}}');
  const { json: limits } = await client.message('v1/devices/me/rpc/response/1');
  expect(limits.rateLimits.telemetryMessages).toBe('3:3600');
  client.cut();

  await save(profile, {});
  await eventually(async () => (await post(token)).status === 200);
});

test('calls of the API above the rate of the profile are refused', async () => {
  const { admin, profile } = await tenantWith({ tenantServerRestLimitsConfiguration: '4:3600' });
  const call = () => sharedEngine().send('GET', '/api/tenant/devices?pageSize=1&page=0', undefined, admin);
  await eventually(async () => (await call()).status === 429);
  await save(profile, {});
  await eventually(async () => (await call()).status === 200);
});

test('commands above the rate of the profile are refused, one-way, two-way and persistent alike', async () => {
  const { admin, device, profile } = await tenantWith({ serverSideRpcRateLimit: '2:3600' });
  const send = async (path: string, more: object = {}) => {
    const body = { method: 'blink', params: {}, ...more };
    return (await sharedEngine().send('POST', `${path}/${device.id.id}`, body, admin)).status;
  };
  const persistent = () => send('/api/rpc/oneway', { persistent: true });
  await eventually(async () => (await persistent()) === 429);
  expect(await send('/api/rpc/twoway')).toBe(429);
  expect(await send('/api/plugins/rpc/oneway')).toBe(429);
  await save(profile, {});
  await eventually(async () => (await persistent()) === 200);
});

test('telemetry is shown for as many days as the profile of the tenant says, or fewer where the device profile says so', async () => {
  const { profile, admin, token, device } = await tenantWith({ defaultStorageTtlDays: 30 });
  const day = 86_400_000;
  const times = [1, 10, 40].map((days) => Date.now() - days * day);
  for (const ts of times)
    expect(await sharedEngine().postTelemetry(token, JSON.stringify({ ts, values: { k: 1 } }))).toBe(200);
  const path = `/api/plugins/telemetry/DEVICE/${device.id.id}/values/timeseries?keys=k&startTs=0&endTs=${Date.now()}`;
  const shown = async () =>
    ((await ok('GET', path, undefined, admin)).k ?? []).map(({ ts }: Json) => times.indexOf(ts));
  await eventually(async () => (await shown()).join() === '0,1');
  const byDevice = await ok('GET', `/api/deviceProfile/${device.deviceProfileId.id}`, undefined, admin);
  const profileData = { ...byDevice.profileData, telemetryTtlDays: 5 };
  await ok('POST', '/api/deviceProfile', { ...byDevice, profileData }, admin);
  expect(await shown()).toEqual([0]);
  await ok('POST', '/api/deviceProfile', { ...byDevice, version: undefined }, admin);
  await save(profile, {});
  // ClickHouse gets late points a moment later.
  await expect.poll(shown).toEqual([0, 1, 2]);
});

test('messages above the quota of a month are refused until the profile says more, and the usage shows it', async () => {
  const { admin, token, tenant, profile, device } = await tenantWith({ maxTransportMessages: 5 });
  const post = () => sharedEngine().send('POST', `/api/v1/${token}/telemetry`, { a: 1, b: 2 }, '');
  let answer = await post();
  await eventually(async () => {
    if (answer.status === 429) return true;
    answer = await post();
    return false;
  });
  expect(Number(answer.headers.get('retry-after'))).toBeGreaterThan(0);
  expect(((await answer.json()) as Json).message).toBe(
    `The devices of this tenant have sent their 5 messages of this month (maxTransportMessages of tenant profile "${profile.name}").`,
  );
  // Both workers know the sum now: other messages are refused, too, over MQTT as over HTTP.
  await eventually(async () => {
    const read = await sharedEngine().send('GET', `/api/v1/${token}/attributes?clientKeys=a`, undefined, '');
    return read.status === 429;
  });
  const client = await connectMqtt({ token });
  const code = async () => (await client.publish('v1/devices/me/telemetry', { a: 1 })).reasonCode;
  await expect.poll(code).toBe(0x97);
  client.cut();

  // A worker adds its counts every five seconds.
  const usageOf = () => ok('GET', '/api/usage', undefined, admin);
  await expect.poll(async () => (await usageOf()).transportMessages, { timeout: 10_000 }).toBeGreaterThanOrEqual(5);
  const usage = await usageOf();
  expect(usage).toEqual({
    month: new Date().toISOString().slice(0, 7),
    ...{ devices: 1, maxDevices: 0, customers: 0, maxCustomers: 0, users: 1, maxUsers: 0 },
    ...{ transportMessages: expect.any(Number), maxTransportMessages: 5 },
    ...{ transportDataPoints: expect.any(Number), maxTransportDataPoints: 0, maxTelemetryKeysPerDevice: 0 },
  });
  expect(usage.transportDataPoints).toBeGreaterThanOrEqual(6);
  const bySystem = await ok('GET', `/api/tenant/usage/${tenant.id}`, undefined, await systemAdminToken());
  expect(bySystem).toMatchObject({ devices: 1, users: 1, maxTransportMessages: 5 });
  const { refusals } = await ok('GET', `/api/device/${device.id.id}/diagnostics`, undefined, admin);
  expect(refusals.map(({ reason }: Json) => reason)).toContain('quota_messages');

  const raised = await save(profile, { maxTransportMessages: 1_000 });
  await eventually(async () => (await post()).status === 200);
  await save(raised, { maxTransportDataPoints: 1 });
  await eventually(async () => /1 data points of this month/.test(await (await post()).text()));
});

test('a device has as many telemetry keys as the profile says, over every door; other devices have their own', async () => {
  const { admin, token, profile, device } = await tenantWith({ maxTelemetryKeysPerDevice: 3 });
  const post = async (values: object) => {
    const answer = await sharedEngine().send('POST', `/api/v1/${token}/telemetry`, values, '');
    return answer.status === 200 ? '200' : `${answer.status} ${((await answer.json()) as Json).message}`;
  };
  const full = `403 Telemetry keys limit reached: a device may have 3 (maxTelemetryKeysPerDevice of tenant profile "${profile.name}").`;
  await expect.poll(() => post({ a: 1, b: 2, c: 3, d: 4 })).toBe(full);
  expect(await post({ a: 1, b: 2 })).toBe('200');
  expect(await post({ c: 3 })).toBe('200');
  // A refused message stores nothing, and known keys go on at every worker.
  const path = `/api/plugins/telemetry/DEVICE/${device.id.id}`;
  await expect
    .poll(async () => (await ok('GET', `${path}/keys/timeseries`, undefined, admin)).sort())
    .toEqual([...['a', 'b', 'c']]);
  // Each worker may accept a message with new keys before it knows those of the other.
  const isFull = async () => (await post({ [randomUUID()]: 1 })) === full;
  await eventually(async () => (await isFull()) && (await isFull()) && (await isFull()) && (await isFull()));
  expect((await ok('GET', `${path}/keys/timeseries`, undefined, admin)).length).toBeLessThanOrEqual(6);
  // A worker that was full before it knew these keys reads them.
  await expect.poll(() => post({ a: 1, b: 1, c: 1 }), { timeout: 10_000 }).toBe('200');
  // 40 000 points are decoded in a thread.
  const many = Array.from({ length: 20_000 }, (_, n) => ({
    ts: 1_700_000_000_000 + n,
    values: { a: n, [`of ${n}`]: n },
  }));
  await expect.poll(() => post(many)).toBe(full);
  const client = await connectMqtt({ token });
  const code = async (values: object) => (await client.publish('v1/devices/me/telemetry', values)).reasonCode;
  await expect.poll(() => code({ [randomUUID()]: 1 })).toBe(0x97);
  await expect.poll(() => code({ a: 1 }), { timeout: 10_000 }).toBe(0);
  client.cut();

  const other = await ok('POST', '/api/device', { name: `lamp-${randomUUID()}` }, admin);
  const { credentialsId } = await ok('GET', `/api/device/${other.id.id}/credentials`, undefined, admin);
  expect((await sharedEngine().send('POST', `/api/v1/${credentialsId}/telemetry`, { x: 1, y: 2 }, '')).status).toBe(
    200,
  );
  await save(profile, { maxTelemetryKeysPerDevice: 40 });
  await expect.poll(() => post({ d: 4 })).toBe('200');
});

test('keys above the limit refuse one child of a gateway and keep the points of the others', async () => {
  const { admin, device } = await tenantWith({ maxTelemetryKeysPerDevice: 2 });
  await ok('POST', '/api/device', { ...device, version: undefined, additionalInfo: { gateway: true } }, admin);
  const { credentialsId: token } = await ok('GET', `/api/device/${device.id.id}/credentials`, undefined, admin);
  const client = await connectMqtt({ token });
  const [calm, loud] = [`calm-${randomUUID()}`, `loud-${randomUUID()}`];
  const message = (keys: string[]) => ({
    [calm]: [{ ts: 1_700_000_000_000, values: { a: 1 } }],
    [loud]: [{ ts: 1_700_000_000_000, values: Object.fromEntries(keys.map((key) => [key, 1])) }],
  });
  const publish = async (body: object) => (await client.publish('v1/gateway/telemetry', body)).reasonCode;
  await eventually(async () => (await publish(message(['a', 'b', 'c']))) !== 0);
  expect(await publish(message(['a', 'b']))).toBe(0);
  await eventually(async () => (await publish(message(['a', 'c']))) === 0x97);
  // A large message is decoded in a thread.
  const large = {
    ...message(['a', 'd']),
    [calm]: Array.from({ length: 20_000 }, (_, n) => ({ ts: n + 1, values: { a: n } })),
  };
  await eventually(async () => (await publish(large)) === 0x97, 20_000);
  const keysOf = async (name: string) => {
    const child = await ok('GET', `/api/tenant/devices?deviceName=${name}`, undefined, admin);
    return (await ok('GET', `/api/plugins/telemetry/DEVICE/${child.id.id}/keys/timeseries`, undefined, admin)).sort();
  };
  await expect.poll(() => keysOf(calm)).toEqual(['a']);
  await expect.poll(() => keysOf(loud)).toEqual(['a', 'b']);
  client.cut();
});
