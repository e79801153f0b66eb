/** Compressed telemetry and attributes over HTTP (docs/http.md#compressed-bodies). */
import * as zlib from 'node:zlib';
import { brotliCompressSync, gzipSync } from 'node:zlib';
import { expect, test } from 'vitest';
import { connectMqtt } from '../../harness/mqtt-client.ts';
import { storedValues } from '../../harness/mqtt-device.ts';
import { mqttPort, newDevice, sharedEngine } from '../../harness/shared-engine.ts';

/** The engine runs under the Node of the tests, which has zstd since 22.15. `.ci/node-22` runs this file with it. */
const { zstdCompressSync } = zlib as { zstdCompressSync?: (bytes: Buffer) => Buffer };

async function send(path: string, encoding: string, body: Buffer): Promise<Response> {
  const headers = { 'Content-Encoding': encoding };
  const url = `http://127.0.0.1:${sharedEngine().address.port}/api/v1/${path}`;
  return await fetch(url, { method: 'POST', headers, body: body as Uint8Array<ArrayBuffer> });
}

async function post(path: string, encoding: string, body: Buffer): Promise<number> {
  return (await send(path, encoding, body)).status;
}

test('telemetry and attributes are stored, also a body for the decoding thread', async () => {
  // The body is compressed before the first request, because on a busy machine that takes longer than the server keeps
  // an idle connection.
  const many = JSON.stringify(Array.from({ length: 30_000 }, (_, n) => ({ ts: n + 1, values: { many: n } })));
  const large = brotliCompressSync(`${many.slice(0, -1)},{"large":2}]`);
  const device = await newDevice();
  expect(await post(`${device.token}/telemetry`, 'gzip', gzipSync('{"small":1}'))).toBe(200);
  expect(await post(`${device.token}/telemetry`, 'br', large)).toBe(200);
  expect(await post(`${device.token}/attributes`, 'gzip', gzipSync('{"serial":"A-17"}'))).toBe(200);
  expect(await storedValues(device, 'small')).toEqual(['1']);
  expect(await storedValues(device, 'large')).toEqual(['2']);
});

test('over MQTT 5 the user property or the content type names the encoding', async () => {
  const device = await newDevice();
  const client = await connectMqtt({ port: mqttPort(), token: device.token });
  const publish = (payload: Buffer, properties: object) =>
    client.publish('v1/devices/me/telemetry', payload, { properties });
  const sent = [
    await publish(gzipSync('{"property":1}'), { userProperties: { 'content-encoding': 'gzip' } }),
    await publish(gzipSync('{"gzip":1}'), { contentType: 'application/gzip' }),
    await publish(zlib.deflateSync('{"zlib":1}'), { contentType: 'Application/Zlib' }),
    await publish(Buffer.from('{"plain":1}'), { contentType: 'application/json' }),
    await publish(Buffer.from('{"damaged":1}'), { contentType: 'application/gzip' }),
  ];
  client.cut();
  expect(sent.map(({ reasonCode }) => reasonCode)).toEqual([0, 0, 0, 0, 0x99]);
  for (const key of ['property', 'gzip', 'zlib', 'plain']) expect(await storedValues(device, key)).toEqual(['1']);
});

test('refusals: bytes that are not packed, an unknown encoding, an unknown device', async () => {
  const device = await newDevice();
  expect(await post(`${device.token}/telemetry`, 'gzip', Buffer.from('{"a":1}'))).toBe(400);
  expect(await post(`${device.token}/telemetry`, 'lzma', Buffer.from('{"a":1}'))).toBe(415);
  expect(await post('unknown-device-token/telemetry', 'gzip', gzipSync('{"a":1}'))).toBe(401);
});

/** A frame of zstd with one block, which is not compressed (RFC 8878 section 3.1.1): any Node can make it. */
function zstdFrame(text: string): Buffer {
  const content = Buffer.from(text);
  const [magic, oneSegment, lastRawBlock] = [0xfd2fb528, 0x20, 1];
  const head = Buffer.alloc(9);
  head.writeUInt32LE(magic);
  head.writeUInt8(oneSegment, 4);
  head.writeUInt8(content.length, 5);
  head.writeUIntLE((content.length << 3) | lastRawBlock, 6, 3);
  return Buffer.concat([head, content]);
}

if (zstdCompressSync) {
  test('zstd is unpacked over HTTP and MQTT, in the loop and beside it, up to the cap', async () => {
    const device = await newDevice();
    const telemetry = `${device.token}/telemetry`;
    expect(await post(telemetry, 'zstd', zstdFrame('{"raw":1}'))).toBe(200);
    expect(await post(telemetry, 'zstd', zstdCompressSync(Buffer.from('{"small":2}')))).toBe(200);
    const many = JSON.stringify(Array.from({ length: 30_000 }, (_, n) => ({ ts: n + 1, values: { many: n } })));
    const large = zstdCompressSync(Buffer.from(`${many.slice(0, -1)},{"large":3}]`));
    expect(await post(telemetry, 'ZSTD', large)).toBe(200);
    const client = await connectMqtt({ port: mqttPort(), token: device.token });
    const publish = (payload: Buffer) =>
      client.publish('v1/devices/me/telemetry', payload, {
        properties: { userProperties: { 'content-encoding': 'zstd' } },
      });
    expect((await publish(zstdCompressSync(Buffer.from('{"mqtt":4}')))).reasonCode).toBe(0);
    expect((await publish(zstdCompressSync(Buffer.alloc(8 * 1024 * 1024)))).reasonCode).toBe(0x99);
    client.cut();
    for (const [n, key] of ['raw', 'small', 'large', 'mqtt'].entries()) {
      expect(await storedValues(device, key)).toEqual([String(n + 1)]);
    }
    const attributes = `${device.token}/attributes`;
    expect(await post(attributes, 'zstd', zstdCompressSync(Buffer.alloc(8 * 1024 * 1024, ' ')))).toBe(413);
    expect(await post(attributes, 'zstd', large.subarray(0, -20))).toBe(400);
    expect(await post(attributes, 'zstd', Buffer.from('{"a":1}'))).toBe(400);
  });
} else {
  test('zstd is 415 under a Node that has none, with what is accepted instead', async () => {
    const device = await newDevice();
    const answer = await send(`${device.token}/telemetry`, 'zstd', zstdFrame('{"raw":1}'));
    expect([answer.status, answer.headers.get('accept-encoding')]).toEqual([415, 'gzip, deflate, br']);
    expect(await answer.json()).toMatchObject({ message: expect.stringContaining('"zstd" is not supported') });
    const client = await connectMqtt({ port: mqttPort(), token: device.token });
    const properties = { userProperties: { 'content-encoding': 'zstd' } };
    const ack = await client.publish('v1/devices/me/telemetry', zstdFrame('{"raw":1}'), { properties });
    expect(ack.reasonCode).toBe(0x99);
    client.cut();
  });
}
