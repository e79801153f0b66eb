/** Packages by REST (docs/rest.md#packages). */
import { createHash, randomBytes, randomUUID } from 'node:crypto';
import { expect, test } from 'vitest';
import {
  call,
  describePackage,
  newPackage,
  type PackageJson,
  readDevice,
  saveDevice,
  upload,
} from '../../harness/ota.ts';
import { RawConnection } from '../../harness/raw.ts';
import { fault, faultOf } from '../../harness/rest.ts';
import { newDevice, sharedEngine } from '../../harness/shared-engine.ts';

interface Page {
  data: PackageJson[];
  totalElements: number;
}

const infoMembers = [
  'additionalInfo',
  'checksum',
  'checksumAlgorithm',
  'contentType',
  'createdTime',
  'dataSize',
  'deviceProfileId',
  'externalId',
  'fileName',
  'hasData',
  'id',
  'name',
  'tag',
  'tenantId',
  'title',
  'type',
  'url',
  'version',
];

test('a described package has all members and no data', async () => {
  const described = await describePackage({ version: '2.10', tag: 'pumpfw 2.10', additionalInfo: { note: 1 } });
  expect(Object.keys(described).sort()).toEqual(infoMembers);
  expect(described).toMatchObject({
    id: { entityType: 'OTA_PACKAGE' },
    deviceProfileId: null,
    type: 'FIRMWARE',
    version: '2.10',
    tag: 'pumpfw 2.10',
    name: described.title,
    hasData: false,
    dataSize: null,
    checksum: null,
    additionalInfo: { note: 1 },
  });
  expect(await call('GET', `/api/otaPackage/info/${described.id.id}`)).toEqual(described);
});

test('an upload answers size, name, type and checksum', async () => {
  const stored = await newPackage({}, { bytes: Buffer.from([1]), name: 'pump.bin', type: 'application/x-fw' });
  expect(stored).toMatchObject({
    hasData: true,
    dataSize: 1,
    fileName: 'pump.bin',
    contentType: 'application/x-fw',
    checksumAlgorithm: 'SHA256',
    checksum: '4bf5122f344554c53bde2ebb8cd2b7e3d1600ad631c385a5d7cce23c7785459a',
  });
});

test('the CRC32 of 123456789 is 2639f4cb', async () => {
  const stored = await newPackage({}, { bytes: Buffer.from('123456789'), algorithm: 'CRC32' });
  expect(stored).toMatchObject({ checksumAlgorithm: 'CRC32', checksum: '2639f4cb' });
});

test('a wrong checksum is refused and stores nothing; the right one is accepted', async () => {
  const { id } = await describePackage();
  const bytes = Buffer.from('123456789');
  expect(await faultOf(await upload(id.id, { bytes, algorithm: 'CRC32', checksum: 'cbf43926' }))).toBe(
    '400/31 Wrong otaPackage file!',
  );
  expect(await call('GET', `/api/otaPackage/info/${id.id}`)).toMatchObject({ hasData: false });
  expect((await upload(id.id, { bytes, algorithm: 'CRC32', checksum: '2639F4CB' })).status).toBe(200);
});

test('what is missing or unknown in an upload is named', async () => {
  const { id } = await describePackage();
  expect(await faultOf(await upload(id.id, { algorithm: 'CRC16' }))).toBe('400/31 Unknown checksum algorithm!');
  expect(await faultOf(await upload(id.id, { algorithm: '' }))).toBe(
    "400/31 Required request parameter 'checksumAlgorithm' is not present",
  );
  expect(await faultOf(await upload(id.id, { bytes: Buffer.alloc(0) }))).toBe(
    '400/31 OtaPackage data should be specified!',
  );
  expect(await faultOf(await upload(id.id, { part: 'data' }))).toBe(
    "400/31 Required request part 'file' is not present",
  );
  expect(await fault('POST', `/api/otaPackage/${id.id}?checksumAlgorithm=MD5`, { file: 1 })).toMatch(/^415\/31 /);
  const unknown = randomUUID();
  expect(await faultOf(await upload(unknown))).toBe(`404/32 OtaPackage with id [${unknown}] is not found`);
});

test('data is uploaded once, and notifications of devices stay', async () => {
  const stored = await newPackage();
  expect(await faultOf(await upload(stored.id.id))).toBe('400/31 Updating otaPackage data is prohibited!');
  for (const [member, name] of [
    ['title', 'title'],
    ['version', 'version'],
    ['tag', 'tag'],
    ['url', 'url'],
  ] as const) {
    const changed = { ...stored, [member]: `other-${randomUUID()}` };
    expect(await fault('POST', '/api/otaPackage', changed)).toBe(`400/31 Updating otaPackage ${name} is prohibited!`);
  }
  expect(await call('POST', '/api/otaPackage', { ...stored, additionalInfo: { a: 1 } })).toEqual({
    ...stored,
    additionalInfo: { a: 1 },
  });
});

test('a description without its words, or a second time, is refused', async () => {
  const body = { type: 'FIRMWARE', title: 'x', version: '1' };
  const refused = (members: object) => fault('POST', '/api/otaPackage', { ...body, ...members });
  expect(await refused({ title: '' })).toBe('400/31 OtaPackage title should be specified!');
  expect(await refused({ version: null })).toBe('400/31 OtaPackage version should be specified!');
  expect(await refused({ usesUrl: true })).toBe('400/31 Ota package URL should be specified!');
  expect(await refused({ title: '<b>x' })).toBe('400/31 Validation error: title is malformed');
  expect(await refused({ type: 'HARDWARE' })).toMatch(/^400\/31 /);
  const { title } = await describePackage();
  expect(await refused({ title })).toBe('400/31 OtaPackage with such title and version already exists!');
});

test('more than 16 MiB is 413, 16 MiB is not', async () => {
  const { id } = await describePackage();
  expect(await faultOf(await upload(id.id, { bytes: Buffer.alloc(16 * 1024 * 1024 + 1) }))).toMatch(/^413\/31 /);
  expect((await upload(id.id, { bytes: Buffer.alloc(16 * 1024 * 1024) })).status).toBe(200);
});

test('a declared length beyond the limit is refused before the body is read', async () => {
  const { id } = await describePackage();
  const api = sharedEngine();
  const connection = await RawConnection.open(api.address.port);
  await connection.send(
    `POST /api/otaPackage/${id.id}?checksumAlgorithm=MD5 HTTP/1.1\r\nHost: x\r\nContent-Length: 99999999\r\n` +
      `X-Authorization: Bearer ${await api.adminToken()}\r\n` +
      'Content-Type: multipart/form-data; boundary=x\r\n\r\n--x\r\n',
  );
  expect((await connection.response()).status).toBe(413);
  connection.close();
});

test('the file comes back by download and in base64', async () => {
  const bytes = randomBytes(700_000);
  const stored = await newPackage({}, { bytes, name: '../etc/Pümpe 1.bin' });
  expect(stored['checksum']).toBe(createHash('sha256').update(bytes).digest('hex'));
  const download = await sharedEngine().send('GET', `/api/otaPackage/${stored.id.id}/download`);
  expect(Buffer.from(await download.arrayBuffer()).equals(bytes)).toBe(true);
  expect(download.headers.get('content-length')).toBe('700000');
  expect(download.headers.get('content-disposition')).toBe(
    `attachment;filename="P_mpe 1.bin";filename*=UTF-8''P%C3%BCmpe%201.bin`,
  );
  expect(download.headers.get('x-filename')).toBe('P%C3%BCmpe%201.bin');
  const whole = await call<PackageJson & { data: string }>('GET', `/api/otaPackage/${stored.id.id}`);
  expect(Buffer.from(whole.data, 'base64').equals(bytes)).toBe(true);
  expect(whole).toMatchObject({ fileName: 'Pümpe 1.bin', title: stored.title });
});

test('a package at a URL has no file here', async () => {
  const described = await describePackage({ usesUrl: true, url: 'https://files.example/fw.bin' });
  expect(described).toMatchObject({ hasData: true, url: 'https://files.example/fw.bin', dataSize: null });
  const download = await sharedEngine().send('GET', `/api/otaPackage/${described.id.id}/download`);
  expect([download.status, await download.text()]).toEqual([400, '']);
  expect(await faultOf(await upload(described.id.id))).toMatch(/^400\/31 /);
});

test('lists are paged and searched; that of a profile has only what can be assigned', async () => {
  const device = await readDevice((await newDevice()).id);
  const mark = `list-${randomUUID()}`;
  const stored = await newPackage({ title: mark, deviceProfileId: device.deviceProfileId });
  await describePackage({ title: mark, version: '2' });
  await newPackage({ title: mark, version: '3', type: 'SOFTWARE' });
  const all = await call<Page>('GET', `/api/otaPackages?pageSize=2&page=0&textSearch=${mark.toUpperCase()}`);
  expect([all.totalElements, all.data.length]).toEqual([3, 2]);
  const path = `/api/otaPackages/${device.deviceProfileId.id}/FIRMWARE?pageSize=10&page=0&textSearch=${mark}`;
  expect((await call<Page>('GET', path)).data).toEqual([stored]);
  expect(await fault('GET', '/api/otaPackages?pageSize=0&page=0')).toMatch(/^400\/31 /);
  expect(await fault('GET', `/api/otaPackages/${device.deviceProfileId.id}/HARDWARE?pageSize=1&page=0`)).toMatch(
    /^400\/31 /,
  );
});

test('an assignment names what is wrong with the package', async () => {
  const { id } = await newDevice();
  const device = await readDevice(id);
  const refused = (firmwareId: object) => fault('POST', '/api/device', { ...device, firmwareId });
  const missing = { entityType: 'OTA_PACKAGE', id: randomUUID() };
  expect(await refused(missing)).toBe("400/31 Can't assign non-existent firmware!");
  expect(await refused((await newPackage({ type: 'SOFTWARE' })).id)).toBe(
    "400/31 Can't assign firmware with type: SOFTWARE",
  );
  expect(await refused((await describePackage()).id)).toBe("400/31 Can't assign firmware with empty data!");
  const other = await call<{ deviceProfileId: object }>('POST', '/api/device', {
    name: randomUUID(),
    type: randomUUID(),
  });
  const foreign = await newPackage({ deviceProfileId: other.deviceProfileId });
  expect(await refused(foreign.id)).toBe("400/31 Can't assign firmware with different deviceProfile!");
  const { token } = await sharedEngine().login('tenant@thingsboard.org', 'tenant');
  const strange = await sharedEngine().send(
    'POST',
    '/api/otaPackage',
    { type: 'FIRMWARE', title: 't', version: id },
    token,
  );
  expect(await refused(((await strange.json()) as PackageJson).id)).toBe("400/31 Can't assign non-existent firmware!");
});

test('a package in use stays, an unused one goes with its file', async () => {
  const [firmware, software] = [await newPackage(), await newPackage({ type: 'SOFTWARE' })];
  const { id } = await newDevice();
  await saveDevice(id, { firmwareId: firmware.id, softwareId: software.id });
  expect(await fault('DELETE', `/api/otaPackage/${firmware.id.id}`)).toBe(
    '400/31 The otaPackage referenced by the devices cannot be deleted!',
  );
  expect(await fault('DELETE', `/api/otaPackage/${software.id.id}`)).toBe(
    '400/31 The software referenced by the devices cannot be deleted!',
  );
  await saveDevice(id, { firmwareId: null });
  await call('DELETE', `/api/otaPackage/${firmware.id.id}`);
  expect(await fault('GET', `/api/otaPackage/info/${firmware.id.id}`)).toMatch(/^404\/32 /);
  expect(await fault('DELETE', `/api/otaPackage/${firmware.id.id}`)).toMatch(/^404\/32 /);
});

test('devices of a profile without an own package are counted', async () => {
  const type = randomUUID();
  const make = (members: object = {}) =>
    call<{ deviceProfileId: { id: string } }>('POST', '/api/device', { name: randomUUID(), type, ...members });
  const { deviceProfileId } = await make();
  await make();
  await make({ firmwareId: (await newPackage()).id });
  expect(await call('GET', `/api/devices/count/FIRMWARE/${deviceProfileId.id}`)).toBe(2);
  expect(await call('GET', `/api/devices/count/SOFTWARE/${deviceProfileId.id}`)).toBe(3);
  expect(await fault('GET', `/api/devices/count/FIRMWARE/${randomUUID()}`)).toMatch(/^404\/32 /);
});
