/** Compressed telemetry and attributes over HTTP (docs/http.md#compressed-bodies). */
import { brotliCompressSync, gzipSync } from 'node:zlib';
import { expect, test } from 'vitest';
import { storedValues } from '../../harness/mqtt-device.ts';
import { newDevice, sharedEngine } from '../../harness/shared-engine.ts';

async function post(path: string, encoding: string, body: Buffer): Promise<number> {
  const headers = { 'Content-Encoding': encoding };
  const url = `http://127.0.0.1:${sharedEngine().address.port}/api/v1/${path}`;
  return (await fetch(url, { method: 'POST', headers, body: body as Uint8Array<ArrayBuffer> })).status;
}

test('telemetry and attributes are stored, also a body for the decoding thread', async () => {
  const device = await newDevice();
  expect(await post(`${device.token}/telemetry`, 'gzip', gzipSync('{"small":1}'))).toBe(200);
  const many = JSON.stringify(Array.from({ length: 30_000 }, (_, n) => ({ ts: n + 1, values: { many: n } })));
  expect(await post(`${device.token}/telemetry`, 'br', brotliCompressSync(`${many.slice(0, -1)},{"large":2}]`))).toBe(
    200,
  );
  expect(await post(`${device.token}/attributes`, 'gzip', gzipSync('{"serial":"A-17"}'))).toBe(200);
  expect(await storedValues(device, 'small')).toEqual(['1']);
  expect(await storedValues(device, 'large')).toEqual(['2']);
});

test('refusals: bytes that are not packed, an unknown encoding, an unknown device', async () => {
  const device = await newDevice();
  expect(await post(`${device.token}/telemetry`, 'gzip', Buffer.from('{"a":1}'))).toBe(400);
  expect(await post(`${device.token}/telemetry`, 'lzma', Buffer.from('{"a":1}'))).toBe(415);
  expect(await post('unknown-device-token/telemetry', 'gzip', gzipSync('{"a":1}'))).toBe(401);
});
