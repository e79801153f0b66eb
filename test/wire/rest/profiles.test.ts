/** Device profiles (docs/rest.md#device-profiles). */
import { randomUUID } from 'node:crypto';
import { expect, test } from 'vitest';
import { eventually } from '../../harness/api.ts';
import { newCustomer, newCustomerUser, newTenant, ok } from '../../harness/people.ts';
import { fault } from '../../harness/rest.ts';
import { sharedEngine } from '../../harness/shared-engine.ts';

const newProfile = (members: object = {}) =>
  ok('POST', '/api/deviceProfile', { name: `pump-${randomUUID()}`, ...members });

const provisioning = (key: string | null, secret: string | null, type = 'ALLOW_CREATE_NEW_DEVICES') => ({
  provisionType: type,
  provisionDeviceKey: key,
  profileData: { provisionConfiguration: { type, provisionDeviceSecret: secret } },
});

test('a profile needs only a name; everything else is there', async () => {
  const profile = await newProfile();
  expect(profile).toEqual({
    id: { entityType: 'DEVICE_PROFILE', id: expect.any(String) },
    createdTime: expect.any(Number),
    tenantId: { entityType: 'TENANT', id: expect.any(String) },
    name: profile.name,
    description: null,
    image: null,
    default: false,
    type: 'DEFAULT',
    transportType: 'DEFAULT',
    provisionType: 'DISABLED',
    defaultRuleChainId: null,
    defaultDashboardId: null,
    defaultQueueName: null,
    profileData: {
      configuration: { type: 'DEFAULT' },
      transportConfiguration: { type: 'DEFAULT' },
      provisionConfiguration: { type: 'DISABLED', provisionDeviceSecret: null },
      alarms: null,
    },
    provisionDeviceKey: null,
    firmwareId: null,
    softwareId: null,
    defaultEdgeRuleChainId: null,
    externalId: null,
    version: 1,
  });
  expect(await ok('GET', `/api/deviceProfile/${profile.id.id}`)).toEqual(profile);
});

test('unknown members come back unchanged', async () => {
  const alarms = [{ id: 'a', createRules: { MAJOR: { condition: { spec: { type: 'SIMPLE' } } } } }];
  const transportConfiguration = { type: 'MQTT', deviceTelemetryTopic: 'v1/devices/me/telemetry', sparkplug: false };
  const profile = await newProfile({
    transportType: 'MQTT',
    profileData: { alarms, transportConfiguration, more: [1] },
  });
  const topics = {
    deviceAttributesTopic: 'v1/devices/me/attributes',
    deviceAttributesSubscribeTopic: 'v1/devices/me/attributes',
    sendAckOnValidationException: false,
  };
  const configuration = { ...topics, ...transportConfiguration };
  expect(profile.profileData).toMatchObject({ alarms, transportConfiguration: configuration, more: [1] });
  const again = await ok('POST', '/api/deviceProfile', profile);
  expect(again).toEqual({ ...profile, version: 2 });
});

test('faults of a profile are named', async () => {
  const f = (members: object) => fault('POST', '/api/deviceProfile', { name: randomUUID(), ...members });
  const { name } = await newProfile();
  expect(await f({ name: '' })).toBe('400/31 Device profile name should be specified!');
  expect(await f({ name })).toBe('400/31 Device profile with such name already exists!');
  expect(await f({ default: true })).toBe(
    '400/31 Another default device profile is present in scope of current tenant!',
  );
  expect(await f(provisioning(' ', 's'))).toBe('400/31 Provision device key should be specified!');
  expect(await f(provisioning(randomUUID(), ''))).toBe('400/31 Provision device secret should be specified!');
  expect(await f({ provisionType: 'CHECK_PRE_PROVISIONED_DEVICES' })).toBe(
    '400/31 Provision device secret should be specified!',
  );
  expect(await f({ transportType: 'PIGEON' })).toMatch(/^400\/31 /);
  const unknown = randomUUID();
  expect(await fault('GET', `/api/deviceProfile/${unknown}`)).toBe(
    `404/32 Device profile with id [${unknown}] is not found`,
  );
});

test('a provisioning key is taken once', async () => {
  const key = randomUUID();
  await newProfile(provisioning(key, 's1'));
  expect(await fault('POST', '/api/deviceProfile', { name: randomUUID(), ...provisioning(key, 's2') })).toBe(
    '400/31 This provision device key cannot be used: choose another one.',
  );
});

test('the default profile and one in use stay; a renamed one renames the type of its devices', async () => {
  const { id } = await ok('GET', '/api/deviceProfileInfo/default');
  expect(await fault('DELETE', `/api/deviceProfile/${id.id}`)).toBe(
    '400/31 Deletion of Default Device Profile is prohibited!',
  );
  const profile = await newProfile();
  const device = await ok('POST', '/api/device', { name: randomUUID(), deviceProfileId: profile.id });
  const path = `/api/deviceProfile/${profile.id.id}`;
  expect(await fault('DELETE', path)).toBe('400/31 The device profile referenced by the devices cannot be deleted!');
  expect(await fault('POST', '/api/deviceProfile', { ...profile, transportType: 'MQTT' })).toBe(
    "400/31 Can't change device profile transport type because devices referenced it!",
  );
  const name = `renamed-${randomUUID()}`;
  await ok('POST', '/api/deviceProfile', { ...profile, name });
  expect(await ok('GET', `/api/device/${device.id.id}`)).toMatchObject({ type: name });
  await ok('DELETE', `/api/device/${device.id.id}`);
  await ok('DELETE', path);
  expect(await fault('GET', path)).toBe(`404/32 Device profile with id [${profile.id.id}] is not found`);
});

test('a save checks the version', async () => {
  const profile = await newProfile();
  await ok('POST', '/api/deviceProfile', { ...profile, description: 'new' });
  expect(await fault('POST', '/api/deviceProfile', { ...profile, description: 'old' })).toBe(
    '409/35 Device profile was already changed by someone else',
  );
});

test('one profile of a tenant is the default one', async () => {
  const { admin } = await newTenant();
  const call = (method: string, path: string, body?: unknown) => ok(method, path, body, admin.token);
  const [pump, tank] = [
    await call('POST', '/api/deviceProfile', { name: 'pump' }),
    await call('POST', '/api/deviceProfile', { name: 'tank' }),
  ];
  await Promise.all([pump, tank, pump].map(({ id }) => call('POST', `/api/deviceProfile/${id.id}/default`)));
  expect(await call('POST', `/api/deviceProfile/${tank.id.id}/default`)).toMatchObject({ name: 'tank', default: true });
  const { data } = await call('GET', '/api/deviceProfiles?pageSize=10&page=0&sortProperty=name');
  expect(data.map((each: { name: string; default: boolean }) => [each.name, each.default])).toEqual([
    ['default', false],
    ['pump', false],
    ['tank', true],
  ]);
  const names = await call('GET', '/api/deviceProfile/names');
  expect(names.map(({ name }: { name: string }) => name)).toEqual(['default', 'pump', 'tank']);
  await call('POST', '/api/device', { name: 'one', type: 'pump' });
  expect(await call('GET', '/api/deviceProfile/names?activeOnly=true')).toEqual([{ id: pump.id, name: 'pump' }]);
});

test('profiles in short are for customer users too', async () => {
  const { admin: stranger } = await newTenant();
  const foreign = await ok('POST', '/api/deviceProfile', { name: 'foreign' }, stranger.token);
  const profile = await newProfile({ transportType: 'MQTT' });
  const { token } = await newCustomerUser(await newCustomer());
  const info = await ok('GET', `/api/deviceProfileInfo/${profile.id.id}`, undefined, token);
  expect(info).toEqual({
    id: profile.id,
    name: profile.name,
    image: null,
    defaultDashboardId: null,
    type: 'DEFAULT',
    transportType: 'MQTT',
    tenantId: profile.tenantId,
  });
  const ids = `deviceProfileIds=${profile.id.id},${foreign.id.id},${randomUUID()}`;
  expect(await ok('GET', `/api/deviceProfileInfos?${ids}`, undefined, token)).toEqual([info]);
  expect(await ok('GET', `/api/deviceProfileInfos/list?${ids}`, undefined, token)).toEqual([info]);
  const page = `pageSize=10&page=0&textSearch=${profile.name}`;
  expect((await ok('GET', `/api/deviceProfileInfos?${page}&transportType=MQTT`, undefined, token)).data).toEqual([
    info,
  ]);
  expect((await ok('GET', `/api/deviceProfileInfos?${page}&transportType=COAP`, undefined, token)).data).toEqual([]);
});

test('the keys of the devices of a profile are known', async () => {
  const profile = await newProfile();
  const token = randomUUID();
  const device = await ok('POST', `/api/device?accessToken=${token}`, { name: token, deviceProfileId: profile.id });
  await sharedEngine().postTelemetry(token, '{"flow":1,"level":2}');
  const keys = `/api/deviceProfile/devices/keys`;
  const query = `?deviceProfileId=${profile.id.id}`;
  await eventually(async () => (await ok('GET', `${keys}/timeseries${query}`)).length === 2);
  expect(await ok('GET', `${keys}/timeseries${query}`)).toEqual(['flow', 'level']);
  await ok('POST', `/api/plugins/telemetry/DEVICE/${device.id.id}/SERVER_SCOPE`, { site: 'north' });
  expect(await ok('GET', `${keys}/attributes${query}`)).toContain('site');
});

test('a device names its profile by id or by type', async () => {
  const profile = await newProfile();
  const byId = await ok('POST', '/api/device', { name: randomUUID(), type: 'other', deviceProfileId: profile.id });
  expect(byId).toMatchObject({ type: profile.name, deviceProfileId: profile.id });
  const byType = await ok('POST', '/api/device', { name: randomUUID(), type: profile.name });
  expect(byType.deviceProfileId).toEqual(profile.id);
});
