/** A rollout that is interrupted: every worker is killed, and every device is notified in the end. */
import { randomBytes, randomUUID } from 'node:crypto';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { eventually } from '../harness/api.ts';
import { type Engine, startEngine } from '../harness/engine.ts';
import * as tenants from '../harness/tenants.ts';

let engine: Engine;

beforeAll(async () => {
  engine = await startEngine();
});

afterAll(() => engine.destroy());

const deviceCount = 200;

async function call<T>(method: string, path: string, body?: unknown): Promise<T> {
  return await tenants.call(engine.api, method, path, body);
}

test('a profile with many devices, killed workers and a restart', async () => {
  const type = randomUUID();
  const devices: { id: { id: string }; deviceProfileId: { id: string } }[] = [];
  while (devices.length < deviceCount) {
    const make = () => call<(typeof devices)[0]>('POST', '/api/device', { name: randomUUID(), type });
    devices.push(await make(), ...(await Promise.all(Array.from({ length: 19 }, make))));
  }
  const firmware = await call<{ id: { id: string }; title: string }>('POST', '/api/otaPackage', {
    type: 'FIRMWARE',
    title: 'pumpfw',
    version: '2.10',
  });
  const form = new FormData();
  form.set('file', new Blob([randomBytes(100)]), 'fw.bin');
  const upload = await fetch(`${engine.api.http}/api/otaPackage/${firmware.id.id}?checksumAlgorithm=MD5`, {
    method: 'POST',
    headers: { 'x-authorization': `Bearer ${await engine.api.adminToken()}` },
    body: form,
  });
  expect(upload.status).toBe(200);

  const isTold = async ({ id }: (typeof devices)[0]) => {
    const path = `/api/plugins/telemetry/DEVICE/${id.id}/values/attributes/SHARED_SCOPE?keys=fw_title,fw_version`;
    const rows = await call<{ key: string; value: unknown }[]>('GET', path);
    return rows.length === 2 && rows.every(({ value }) => value === 'pumpfw' || value === '2.10');
  };
  const profile = await call<object>('GET', `/api/deviceProfile/${devices[0]!.deviceProfileId.id}`);
  await call('POST', '/api/deviceProfile', { ...profile, firmwareId: firmware.id });
  // The workers are killed between two batches and inside one: the first devices are notified, the last ones are not.
  await Promise.all([engine.kill('worker-0'), engine.kill('worker-1')]);
  await engine.stop();
  await engine.start();
  await eventually(
    async () => {
      for (const device of devices.toReversed()) if (!(await isTold(device))) return false;
      return true;
    },
    30_000,
    200,
  );
  const [last] = devices.slice(-1);
  const state = await engine.api.readSeries(last!.id.id, ['fw_state'], { startTs: 0, endTs: Date.now() + 60_000 });
  expect(state['fw_state']?.at(-1)?.value).toBe('INITIATED');
});
