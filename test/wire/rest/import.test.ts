/** Devices from a CSV file, lists by ids, and the instructions for connecting a device. */

import { execFileSync } from 'node:child_process';
import { randomUUID } from 'node:crypto';
import { mkdtempSync, readFileSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { expect, test } from 'vitest';
import { eventually } from '../../harness/api.ts';
import { newCustomer, newCustomerUser, newTenant, ok, systemAdminToken } from '../../harness/people.ts';
import { fault } from '../../harness/rest.ts';
import { mqttsEngine, newDevice, sharedEngine } from '../../harness/shared-engine.ts';

const columns = [
  { type: 'NAME' },
  { type: 'TYPE' },
  { type: 'LABEL' },
  { type: 'ACCESS_TOKEN' },
  { type: 'IS_GATEWAY' },
  { type: 'SERVER_ATTRIBUTE', key: 'floor' },
  { type: 'TIMESERIES', key: 'flow' },
];

test('rows make devices with what they say, and the wrong ones are listed by line', async () => {
  const run = randomUUID();
  const file = [
    'name,type,label,token,gateway,floor,flow',
    `${run}-a,valve,"North, ""upper""",${run},yes,3,1.5`,
    `${run}-b,,,,,,`,
    ',valve,,,,,',
    `${run}-b,,,,,,`,
    `${run}-c,,,${run},,,`,
    `${run}-d,,,,perhaps,,`,
  ].join('\r\n');
  const result = await ok('POST', '/api/device/bulk_import', {
    file,
    mapping: { columns, header: true, delimiter: ',' },
  });
  expect(result).toEqual({
    created: 2,
    updated: 0,
    errors: 4,
    errorsList: [
      'Line 4: Device name should be specified!',
      'Line 5: Device with such name already exists!',
      'Line 6: These device credentials cannot be used: choose others.',
      "Line 7: IS_GATEWAY must be true or false, not 'perhaps'.",
    ],
  });
  const device = await ok('GET', `/api/tenant/devices?deviceName=${run}-a`);
  expect(device).toMatchObject({ type: 'valve', label: 'North, "upper"', additionalInfo: { gateway: true } });
  const path = `/api/plugins/telemetry/DEVICE/${device.id.id}/values`;
  expect(await ok('GET', `${path}/attributes/SERVER_SCOPE?keys=floor`)).toMatchObject([{ key: 'floor', value: 3 }]);
  await eventually(async () => (await ok('GET', `${path}/timeseries?keys=flow`)).flow[0].value === '1.5');
  const again = { columns: columns.slice(0, 3), update: true };
  const changed = await ok('POST', '/api/device/bulk_import', { file: `${run}-a,,South`, mapping: again });
  expect(changed).toEqual({ created: 0, updated: 1, errors: 0, errorsList: [] });
  expect(await ok('GET', `/api/tenant/devices?deviceName=${run}-a`)).toMatchObject({
    type: 'valve',
    label: 'South',
    additionalInfo: { gateway: true },
  });
});

test('a file without names, or of a column that there is not, is refused as a whole', async () => {
  const send = (mapping: object) => fault('POST', '/api/device/bulk_import', { file: 'a', mapping });
  expect(await send({ columns: [{ type: 'LABEL' }] })).toBe('400/31 No column has the type NAME.');
  expect(await send({ columns: [{ type: 'NAME' }, { type: 'SNMP_HOST' }] })).toMatch(/^400\/31 .*mapping/);
  // A column with an invalid key makes no device.
  const name = randomUUID();
  const mapping = { columns: [{ type: 'NAME' }, { type: 'TIMESERIES', key: ' ' }] };
  expect(await fault('POST', '/api/device/bulk_import', { file: `${name},1`, mapping })).toMatch(/^400\/31 .*[Kk]ey/);
  expect(await fault('GET', `/api/tenant/devices?deviceName=${name}`)).toMatch(/^404/);
});

test('MQTT credentials of a row are those of its device', async () => {
  const name = randomUUID();
  const mapping = { columns: [{ type: 'NAME' }, { type: 'MQTT_USER_NAME' }, { type: 'MQTT_PASSWORD' }] };
  expect(await ok('POST', '/api/device/bulk_import', { file: `${name},${name},pass`, mapping })).toMatchObject({
    created: 1,
  });
  const { id } = await ok('GET', `/api/tenant/devices?deviceName=${name}`);
  expect(await ok('GET', `/api/device/${id.id}/credentials`)).toMatchObject({
    credentialsType: 'MQTT_BASIC',
    credentialsId: name,
  });
});

test('lists by ids hold what the caller may see', async () => {
  const [a, b] = [await newCustomer(), await newCustomer()];
  const user = await newCustomerUser(a);
  const ids = (list: { id: { id: string } }[]) => list.map(({ id }) => id.id).sort();
  const lost = randomUUID();
  const customers = `/api/customers/list?customerIds=${a},${b},${lost}`;
  expect(ids(await ok('GET', customers))).toEqual([a, b].sort());
  expect(ids(await ok('GET', customers, undefined, user.token))).toEqual([a]);
  expect(ids(await ok('GET', `/api/users/list?userIds=${user.id},${lost}`))).toEqual([user.id]);
  const other = await newCustomerUser(b);
  expect(ids(await ok('GET', `/api/users/list?userIds=${user.id},${other.id}`, undefined, user.token))).toEqual([
    user.id,
  ]);
  const { id, admin } = await newTenant();
  const caller = await systemAdminToken();
  expect(ids(await ok('GET', `/api/tenants/list?tenantIds=${id},${lost}`, undefined, caller))).toEqual([id]);
  const info = await ok('GET', `/api/tenant/info/${id}`, undefined, admin.token);
  expect(info).toEqual({
    ...(await ok('GET', `/api/tenant/${id}`, undefined, admin.token)),
    tenantProfileName: expect.any(String),
  });
  const page = await ok('GET', `/api/tenantInfos?pageSize=1&page=0&textSearch=${info.title}`, undefined, caller);
  expect(page).toMatchObject({ data: [info], totalElements: 1 });
});

test('the line for a shell sends telemetry as it is', async () => {
  const { id } = await newDevice();
  const { http } = await ok('GET', `/api/device-connectivity/${id}`);
  execFileSync('sh', ['-c', `${http.http} --fail -s`], { stdio: 'pipe' });
  const { flow: _flow, temperature } = await eventually(async () => {
    const latest = await sharedEngine().readLatest(id);
    return latest['temperature'] ? latest : undefined;
  });
  expect(temperature).toBeDefined();
  const basic = await ok('POST', '/api/device-with-credentials', {
    device: { name: randomUUID() },
    credentials: {
      credentialsType: 'MQTT_BASIC',
      credentialsValue: JSON.stringify({ clientId: "it's", userName: 'u' }),
    },
  });
  const { http: none, mqtt } = await ok('GET', `/api/device-connectivity/${basic.id.id}`);
  expect(none).toBeUndefined();
  expect(mqtt.mqtt).toMatch(/^mosquitto_pub .* -i 'it'\\''s' -u u -m /);
});

test('the lines for TLS fetch the certificates of the server, and send telemetry as they are', async () => {
  const { id } = await newDevice();
  const { mqtt } = await ok('GET', `/api/device-connectivity/${id}`);
  const directory = mkdtempSync(join(tmpdir(), 'millrace-connectivity-'));
  try {
    for (const line of mqtt.mqtts) execFileSync('sh', ['-c', line], { cwd: directory, stdio: 'pipe' });
    expect(readFileSync(join(directory, 'tb-server-chain.pem'), 'utf8')).toBe(mqttsEngine().ca);
  } finally {
    rmSync(directory, { recursive: true, force: true });
  }
  expect(await eventually(async () => (await sharedEngine().readLatest(id))['temperature'])).toBeDefined();
});
