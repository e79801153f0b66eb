/** An address that tries wrong tokens: a device that was loaded at the start, and has sent from there, is served. */
import { request } from 'node:http';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { type Device, eventually } from '../harness/api.ts';
import { type Engine, startEngine } from '../harness/engine.ts';

let engine: Engine;
let devices: Device[];

beforeAll(async () => {
  engine = await startEngine({ workers: 1, env: { WRONG_CREDENTIALS_PER_MINUTE_MAX: '30' } });
  devices = await engine.api.createDevices([{ name: 'one' }, { name: 'two' }]);
  await engine.knowsDevices();
  await engine.restart();
  await eventually(() => engine.events('devices_loaded').length > 0);
  // Both, and the demo device.
  expect(await engine.metric('token_cache_devices')).toBe(devices.length + 1);
});

afterAll(() => engine?.destroy());

function post(localAddress: string, token: string): Promise<number> {
  const path = `/api/v1/${token}/telemetry`;
  return new Promise((resolve, reject) => {
    const call = request({ port: engine.port, path, method: 'POST', localAddress, agent: false }, (answer) => {
      answer.resume();
      answer.on('end', () => resolve(answer.statusCode!));
    });
    call.on('error', reject);
    call.end('{"a":1}');
  });
}

test('a device of a refused address that was right there before is served, and another one is not', async () => {
  const [known, unknown] = devices as [Device, Device];
  const address = '127.0.0.9';
  expect(await post(address, known.token)).toBe(200);
  // All of them come at once: no message of the device is in between.
  await Promise.all(Array.from({ length: 60 }, () => post(address, 'no-such-token')));
  expect(await post(address, 'no-such-token')).toBe(429);
  expect([await post(address, known.token), await post(address, unknown.token)]).toEqual([200, 429]);
  expect(await post('127.0.0.8', unknown.token)).toBe(200);
});
