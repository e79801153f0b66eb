/** GET firmware and software (docs/http.md#firmware-and-software). */
import { randomBytes, randomUUID } from 'node:crypto';
import { connect } from 'node:net';
import { setTimeout as sleep } from 'node:timers/promises';
import { expect, test } from 'vitest';
import { type Device, eventually } from '../../harness/api.ts';
import { firmwarePath, newPackage, type PackageJson, saveDevice, type Upload } from '../../harness/ota.ts';
import { RawConnection } from '../../harness/raw.ts';
import { faultOf } from '../../harness/rest.ts';
import { newDevice, sharedEngine } from '../../harness/shared-engine.ts';

async function assigned(file: Upload = {}, members: object = {}): Promise<{ device: Device; firmware: PackageJson }> {
  const firmware = await newPackage(members, file);
  const device = await newDevice();
  await saveDevice(device.id, { firmwareId: firmware.id });
  return { device, firmware };
}

function get(path: string): Promise<Response> {
  return fetch(sharedEngine().http + path);
}

test('the assigned file is downloaded with its name and type', async () => {
  const { device, firmware } = await assigned({ bytes: Buffer.from('0123456789'), name: 'pump.bin', type: 'a/b' });
  const response = await get(firmwarePath(device.token, firmware));
  expect([response.status, await response.text()]).toEqual([200, '0123456789']);
  expect(response.headers.get('content-length')).toBe('10');
  expect(response.headers.get('content-type')).toBe('a/b');
  expect(response.headers.get('x-filename')).toBe('pump.bin');
  expect(response.headers.get('content-disposition')).toBe('attachment;filename=pump.bin');
});

test('chunks: the last one is short, the one after the end is empty', async () => {
  const { device, firmware } = await assigned({ bytes: Buffer.from('0123456789') });
  const chunk = async (more: string) => {
    const response = await get(firmwarePath(device.token, firmware, more));
    return `${response.status} ${await response.text()}`;
  };
  expect(await chunk('&size=4&chunk=2')).toBe('200 89');
  expect(await chunk('&size=5&chunk=2')).toBe('200 ');
  expect(await chunk('&size=4')).toBe('200 0123');
  expect(await chunk('&size=0&chunk=7')).toBe('200 0123456789');
  expect(await chunk('&chunk=7')).toBe('200 0123456789');
  expect(await chunk('&size=2147483647&chunk=2147483647')).toBe('200 ');
});

test('chunks of any size make the file again', async () => {
  const bytes = randomBytes(600_001);
  const { device, firmware } = await assigned({ bytes });
  for (const size of [4096 * 10, 100_000, 262_144, 300_000, 700_000]) {
    const parts: Buffer[] = [];
    for (let chunk = 0; chunk * size < bytes.length; chunk += 1) {
      const response = await get(firmwarePath(device.token, firmware, `&size=${size}&chunk=${chunk}`));
      parts.push(Buffer.from(await response.arrayBuffer()));
    }
    expect(Buffer.concat(parts).equals(bytes)).toBe(true);
  }
});

test('parameters that are missing or not whole numbers are 400, before the token is checked', async () => {
  for (const [query, message] of [
    ['version=1', "Required request parameter 'title' is not present"],
    ['title=t', "Required request parameter 'version' is not present"],
    ['title=t&version=1&size=x', "Parameter 'size' must be a whole number from 0 to 2147483647"],
    ['title=t&version=1&size=4&chunk=-1', "Parameter 'chunk' must be a whole number from 0 to 2147483647"],
    ['title=t&version=1&size=4294967296', "Parameter 'size' must be a whole number from 0 to 2147483647"],
  ]) {
    expect(await faultOf(await get(`/api/v1/nobody/firmware?${query}`))).toBe(`400/31 ${message}`);
  }
  expect(await faultOf(await get('/api/v1/nobody/firmware?title=t&version=1'))).toMatch(/^401\/10 /);
});

test('an unknown package is 404, a package that is not assigned is 400, and the message names the case', async () => {
  const { device, firmware } = await assigned();
  const refused = async (title: string, version: string, token = device.token) =>
    faultOf(await get(firmwarePath(token, { title, version })));
  const nowhere = randomUUID();
  expect(await refused(nowhere, '1')).toBe(`404/32 There is no firmware with the title '${nowhere}'.`);
  expect(await refused(firmware.title, '9')).toBe(`404/32 The firmware '${firmware.title}' has no version '9'.`);
  const other = await newPackage();
  const exists = `400/31 The firmware '${other.title}' version '1' exists, but it is not assigned to this device.`;
  expect(await refused(other.title, '1')).toBe(exists);
  expect(await refused(other.title, '1', (await newDevice()).token)).toBe(exists);
  expect(await refused('a\0b', '1')).toMatch(/^404\/32 /);
});

test('the packages of another tenant are nowhere', async () => {
  const firmware = await newPackage();
  const response = await get(firmwarePath('A1_TEST_TOKEN', firmware));
  expect(await faultOf(response)).toBe(`404/32 There is no firmware with the title '${firmware.title}'.`);
});

test('a package at a URL is 404', async () => {
  const api = sharedEngine();
  const body = { type: 'FIRMWARE', title: randomUUID(), version: '1', usesUrl: true, url: 'https://files.example/x' };
  const firmware = (await (await api.send('POST', '/api/otaPackage', body)).json()) as PackageJson;
  const device = await newDevice();
  await saveDevice(device.id, { firmwareId: firmware.id });
  expect(await faultOf(await get(firmwarePath(device.token, firmware)))).toMatch(/^404\/32 .*URL/);
});

test('software has a slot of its own', async () => {
  const { device, firmware } = await assigned({ bytes: Buffer.from('firm') });
  const software = await newPackage({ type: 'SOFTWARE' }, { bytes: Buffer.from('soft') });
  await saveDevice(device.id, { softwareId: software.id });
  const softwarePath = firmwarePath(device.token, software).replace('/firmware', '/software');
  expect(await (await get(softwarePath)).text()).toBe('soft');
  expect(await (await get(firmwarePath(device.token, firmware))).text()).toBe('firm');
  expect(await faultOf(await get(firmwarePath(device.token, software)))).toMatch(/^404\/32 /);
});

test('the version 2.10 stays 2.10', async () => {
  const { device, firmware } = await assigned({ bytes: Buffer.from('x') }, { version: '2.10' });
  expect((await get(firmwarePath(device.token, firmware))).status).toBe(200);
  expect(await faultOf(await get(firmwarePath(device.token, { ...firmware, version: '2.1' })))).toMatch(/^404\/32 /);
});

test('another package is served as soon as it is assigned, the old one no more', async () => {
  const { device, firmware } = await assigned({ bytes: Buffer.from('one') });
  expect(await (await get(firmwarePath(device.token, firmware))).text()).toBe('one');
  const next = await newPackage({}, { bytes: Buffer.from('two') });
  await saveDevice(device.id, { firmwareId: next.id });
  expect(await (await get(firmwarePath(device.token, next))).text()).toBe('two');
  await eventually(async () => (await get(firmwarePath(device.token, firmware))).status === 400);
});

test('HEAD returns the length', async () => {
  const { device, firmware } = await assigned({ bytes: randomBytes(300_000) });
  const connection = await RawConnection.open(sharedEngine().address.port);
  const answer = await connection.ask({ method: 'HEAD', path: firmwarePath(device.token, firmware) });
  expect([answer.status, answer.headers.get('content-length')]).toEqual([200, '300000']);
  connection.close();
});

test('two whole files on one connection come in order and complete', async () => {
  const bytes = randomBytes(3_000_000);
  const { device, firmware } = await assigned({ bytes });
  const connection = await RawConnection.open(sharedEngine().address.port);
  for (let n = 0; n < 2; n += 1) {
    const answer = await connection.ask({ method: 'GET', path: firmwarePath(device.token, firmware) });
    expect(answer.body.equals(bytes)).toBe(true);
  }
  connection.close();
});

test('a reader of 16 kB/s gets the whole file', async () => {
  const bytes = randomBytes(12_000_000);
  const { device, firmware } = await assigned({ bytes });
  const { host, port } = sharedEngine().address;
  const received: Buffer[] = [];
  const socket = connect({ host, port });
  socket.write(`GET ${firmwarePath(device.token, firmware)} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n`);
  const slowUntil = performance.now() + 14_000;
  let total = 0;
  while (performance.now() < slowUntil) {
    const chunk = socket.read(4_000) as Buffer | null;
    if (chunk) {
      received.push(chunk);
      total += chunk.length;
    }
    await sleep(250);
  }
  expect(total).toBeLessThan(300_000);
  let length = total;
  for await (const chunk of socket) {
    received.push(chunk as Buffer);
    length += (chunk as Buffer).length;
    if (length > bytes.length + 100 && Buffer.concat(received).length >= bytes.length) break;
  }
  const answer = Buffer.concat(received);
  expect(answer.subarray(answer.indexOf('\r\n\r\n') + 4).equals(bytes)).toBe(true);
  socket.destroy();
}, 30_000);
