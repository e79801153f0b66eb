/**
 * The notifications of a device about its packages (docs/rest.md#packages): own package, package of the profile, and
 * back.
 */
import { randomUUID } from 'node:crypto';
import { describe, expect, test } from 'vitest';
import { eventually } from '../../harness/api.ts';
import {
  call,
  type DeviceJson,
  describePackage,
  firmwarePath,
  newPackage,
  type PackageJson,
  saveDevice,
  seriesOf,
  sharedAttributes,
} from '../../harness/ota.ts';
import { fault } from '../../harness/rest.ts';
import { newDevice, sharedEngine } from '../../harness/shared-engine.ts';

function attributesOf(id: string, firmware: PackageJson, prefix = 'fw'): Promise<Record<string, unknown>> {
  return eventually(async () => {
    const attributes = await sharedAttributes(id);
    return attributes[`${prefix}_title`] === firmware.title ? attributes : undefined;
  });
}

function untold(id: string): Promise<boolean> {
  return eventually(async () => Object.keys(await sharedAttributes(id)).length === 0);
}

test('an assignment writes the target, QUEUED, the shared attributes and INITIATED', async () => {
  const firmware = await newPackage({ version: '2.10', tag: 'pumpfw 2.10' }, { bytes: Buffer.from('123456789') });
  const { id } = await newDevice();
  await saveDevice(id, { firmwareId: firmware.id });
  expect(await attributesOf(id, firmware)).toEqual({
    fw_title: firmware.title,
    fw_version: '2.10',
    fw_tag: 'pumpfw 2.10',
    fw_size: 9,
    fw_checksum_algorithm: 'SHA256',
    fw_checksum: firmware['checksum'],
  });
  const names = ['fw_state', 'target_fw_title', 'target_fw_version', 'target_fw_tag', 'target_fw_ts'];
  const series = await eventually(async () => {
    const read = await seriesOf(id, names);
    return read['fw_state']?.length === 2 ? read : undefined;
  });
  expect(series).toMatchObject({
    fw_state: ['QUEUED', 'INITIATED'],
    target_fw_title: [firmware.title],
    target_fw_version: ['2.10'],
    target_fw_tag: ['pumpfw 2.10'],
  });
  expect(Math.abs(Number(series['target_fw_ts']![0]) - Date.now())).toBeLessThan(20_000);
});

test('a device whose shared attributes take all of their room gets its package, and holds up no other device', async () => {
  const [full, other] = [await newDevice(), await newDevice()];
  const path = `/api/plugins/telemetry/DEVICE/${full.id}`;
  const value = 'x'.repeat(1_000_000);
  const statusOf = async (key: string) =>
    (await sharedEngine().send('POST', `${path}/attributes/SHARED_SCOPE`, { [key]: value })).status;
  /** Each worker sums up the stored bytes after some writes that it took itself. */
  let refused = 0;
  for (let n = 0; refused < 12 && n < 60; n += 1) {
    const statuses = await Promise.all([0, 1, 2].map((part) => statusOf(`k${n}-${part}`)));
    refused = statuses.every((status) => status === 400) ? refused + statuses.length : 0;
  }
  expect(refused).toBe(12);
  const firmware = await newPackage();
  await saveDevice(full.id, { firmwareId: firmware.id });
  await saveDevice(other.id, { firmwareId: firmware.id });
  await attributesOf(other.id, firmware);
  const titles = () => call<{ value: string }[]>('GET', `${path}/values/attributes/SHARED_SCOPE?keys=fw_title`);
  await eventually(async () => (await titles())[0]?.value === firmware.title);
});

test('software has its own names', async () => {
  const software = await newPackage({ type: 'SOFTWARE', version: '3' });
  const { id } = await newDevice();
  await saveDevice(id, { softwareId: software.id });
  expect(await attributesOf(id, software, 'sw')).toMatchObject({ sw_version: '3', sw_size: 10 });
});

test('unassigning a package removes its attributes', async () => {
  const firmware = await newPackage();
  const { id } = await newDevice();
  await saveDevice(id, { firmwareId: firmware.id });
  await attributesOf(id, firmware);
  await saveDevice(id, { firmwareId: null });
  await untold(id);
});

test('a package at a URL has its URL instead of size and checksum, and the next one has them again', async () => {
  const url = 'https://files.example/fw.bin';
  const elsewhere = await describePackage({ usesUrl: true, url });
  const { id } = await newDevice();
  await saveDevice(id, { firmwareId: elsewhere.id });
  expect(await attributesOf(id, elsewhere)).toEqual({ fw_title: elsewhere.title, fw_version: '1', fw_url: url });
  const firmware = await newPackage();
  await saveDevice(id, { firmwareId: firmware.id });
  const attributes = await attributesOf(id, firmware);
  expect(Object.keys(attributes).sort()).toEqual([
    'fw_checksum',
    'fw_checksum_algorithm',
    'fw_size',
    'fw_title',
    'fw_version',
  ]);
});

test('saving a device without a change sends it nothing', async () => {
  const firmware = await newPackage();
  const { id } = await newDevice();
  await saveDevice(id, { firmwareId: firmware.id });
  await attributesOf(id, firmware);
  await saveDevice(id, { label: 'x' });
  const other = await newDevice();
  await saveDevice(other.id, { firmwareId: firmware.id });
  await attributesOf(other.id, firmware);
  // The values of the later device are written after all that the save could have caused. Another worker may have
  // written them, so the test waits for the first device as well.
  for (const each of [other.id, id]) {
    await eventually(async () => (await seriesOf(each, ['fw_state']))['fw_state']?.length === 2);
  }
  expect((await seriesOf(id, ['target_fw_title']))['target_fw_title']).toHaveLength(1);
});

test('the package of a profile is for its devices without an own one; without both there is none', async () => {
  const type = randomUUID();
  const make = (members: object = {}) =>
    call<DeviceJson>('POST', '/api/device', { name: randomUUID(), type, ...members });
  const [plain, special] = [await make(), await make()];
  const own = await newPackage();
  await saveDevice(special.id.id, { firmwareId: own.id });
  await attributesOf(special.id.id, own);

  const profilePath = `/api/deviceProfile/${plain.deviceProfileId.id}`;
  const common = await newPackage({ deviceProfileId: plain.deviceProfileId });
  await call('POST', '/api/deviceProfile', { ...(await call<object>('GET', profilePath)), firmwareId: common.id });
  await attributesOf(plain.id.id, common);
  const young = await make();
  await attributesOf(young.id.id, common);
  expect(await sharedAttributes(special.id.id)).toMatchObject({ fw_title: own.title });
  expect(await fault('DELETE', `/api/otaPackage/${common.id.id}`)).toBe(
    '400/31 The otaPackage referenced by the device profile cannot be deleted!',
  );
  const api = sharedEngine();
  const credentials = await call<{ credentialsId: string }>('GET', `/api/device/${plain.id.id}/credentials`);
  expect((await fetch(api.http + firmwarePath(credentials.credentialsId, common))).status).toBe(200);

  await saveDevice(special.id.id, { firmwareId: null });
  await attributesOf(special.id.id, common);
  await call('POST', '/api/deviceProfile', { ...(await call<object>('GET', profilePath)), firmwareId: null });
  for (const device of [plain, special, young]) await untold(device.id.id);
  await call('DELETE', `/api/otaPackage/${common.id.id}`);
});

test('a profile takes only packages of its own', async () => {
  const device = await call<DeviceJson>('POST', '/api/device', { name: randomUUID(), type: randomUUID() });
  const other = await call<DeviceJson>('POST', '/api/device', { name: randomUUID(), type: randomUUID() });
  const foreign = await newPackage({ deviceProfileId: other.deviceProfileId });
  const profile = await call<object>('GET', `/api/deviceProfile/${device.deviceProfileId.id}`);
  expect(await fault('POST', '/api/deviceProfile', { ...profile, firmwareId: foreign.id })).toBe(
    "400/31 Can't assign firmware with different deviceProfile!",
  );
});

describe('the pace of a profile', () => {
  interface Profile {
    id: { id: string };
    name: string;
    profileData: Record<string, unknown>;
    version?: number;
  }

  /** Makes a profile with so many devices, and a package for it. */
  async function fleet(count: number) {
    const name = `profile-${randomUUID()}`;
    const profile = await call<Profile>('POST', '/api/deviceProfile', { name });
    const devices = Array.from({ length: count }, (_, n) => ({ name: `${name}-${n}`, type: name }));
    const { results } = await call<{ results: { id: { id: string } }[] }>('POST', '/api/devices/bulk', { devices });
    const firmware = await newPackage({ deviceProfileId: profile.id });
    /** Saves the profile with this pace of a rollout. */
    const pace = async (otaRollout: object, members: object = {}) => {
      const { version, ...stored } = await call<Profile>('GET', `/api/deviceProfile/${profile.id.id}`);
      const profileData = { ...stored.profileData, otaRollout };
      await call('POST', '/api/deviceProfile', { ...stored, ...members, profileData });
    };
    const ids = results.map(({ id }) => id.id);
    const notified = async () => {
      const each = await Promise.all(ids.map((id) => sharedAttributes(id)));
      return ids.filter((_, n) => each[n]!['fw_title'] === firmware.title);
    };
    const waiting = async () =>
      (await call<{ waiting: number }>('GET', `/api/deviceProfile/${profile.id.id}/otaRollout`)).waiting;
    return { ids, firmware, pace, notified, waiting };
  }

  test('a part of the devices is notified, always the same, and a pause holds the others', async () => {
    const { ids, firmware, pace, notified, waiting } = await fleet(60);
    await pace({ percent: 30 }, { firmwareId: firmware.id });
    const isSettled = async () => (await waiting()) + (await notified()).length === ids.length;
    await eventually(async () => (await isSettled()) && (await notified()).length > 0);
    const first = await notified();
    // A device that is saved meanwhile does not get ahead of the others.
    const held = ids.find((id) => !first.includes(id))!;
    await saveDevice(held, { label: 'saved' });
    await pace({ percent: 30, paused: true });
    await pace({ percent: 60, paused: true });
    const own = await newPackage();
    await saveDevice(held, { firmwareId: own.id });
    await attributesOf(held, own);
    expect(await notified()).toEqual(first);
    await pace({ percent: 60 });
    await eventually(async () => (await notified()).length > first.length);
    expect(await notified()).toEqual(expect.arrayContaining(first));
    await pace({});
    await eventually(async () => (await notified()).length === ids.length - 1);
    expect(await waiting()).toBe(0);
  });

  test('so many devices are notified in a minute, over all workers', async () => {
    const { ids, firmware, pace, notified } = await fleet(40);
    const begun = performance.now();
    await pace({ perMinute: 600 }, { firmwareId: firmware.id });
    await eventually(async () => (await notified()).length === ids.length, 30_000);
    // The pace is ten devices in a second.
    expect(performance.now() - begun).toBeGreaterThan(3_500);
  });

  test('what is no pace is refused', async () => {
    const refused = (otaRollout: unknown) =>
      fault('POST', '/api/deviceProfile', { name: randomUUID(), profileData: { otaRollout } });
    for (const pace of [{ perMinute: -1 }, { perMinute: 0.5 }, { percent: 101 }, { paused: 'yes' }, 7, []]) {
      expect(await refused(pace)).toMatch(/^400\/31 Validation error: otaRollout must be an object with perMinute/);
    }
  });
});
