/**
 * The server attributes with the times at which a device connected last and at which its last session ended
 * (docs/mqtt.md#sessions).
 */
import { setTimeout as sleep } from 'node:timers/promises';
import { describe, expect, test } from 'vitest';
import { type Device, eventually } from '../../harness/api.ts';
import { connectMqtt } from '../../harness/mqtt-client.ts';
import { telemetry } from '../../harness/mqtt-device.ts';
import { connectMqttOn } from '../../harness/mqtt-workers.ts';
import { ok } from '../../harness/people.ts';
import { newDevice } from '../../harness/shared-engine.ts';
import { clockErrorMs } from '../../harness/stored.ts';

/** Times are written every two seconds. */
const writtenMs = 2_500;

async function times(device: Device): Promise<{ connected: number; disconnected: number }> {
  const rows = await ok('GET', `/api/plugins/telemetry/DEVICE/${device.id}/values/attributes/SERVER_SCOPE`);
  const of = (wanted: string) => rows.find(({ key }: { key: string }) => key === wanted)?.value ?? 0;
  return { connected: of('lastConnectTime'), disconnected: of('lastDisconnectTime') };
}

// The tests run at the same time, each with a device of its own, because all of them wait.
describe.concurrent('sessions', () => {
  test('a connection with a will that is cut is one disconnect', async () => {
    const device = await newDevice();
    const startedAt = Date.now();
    const will = { topic: telemetry, payload: Buffer.from('{"will":1}'), qos: 1 as const };
    const client = await connectMqtt({ token: device.token, will });
    await eventually(async () => (await times(device)).connected >= startedAt - clockErrorMs);
    expect((await times(device)).disconnected).toBe(0);
    const cutAt = Date.now();
    client.cut();
    await eventually(async () => (await times(device)).disconnected > 0);
    const readAt = Date.now();
    const ended = await times(device);
    expect(ended.disconnected).toBeGreaterThanOrEqual(cutAt - clockErrorMs);
    expect(ended.disconnected).toBeLessThanOrEqual(readAt + clockErrorMs);
    await sleep(writtenMs);
    expect(await times(device)).toEqual(ended);
  });

  test('a takeover on one worker or across workers is a connect and no disconnect', async () => {
    const device = await newDevice();
    let last = await connectMqttOn(0, { token: device.token });
    for (const worker of [0, 1, 1, 0]) {
      const old = last;
      last = await connectMqttOn(worker, { token: device.token });
      await old.closedFor(0x8e);
      expect(last.worker).toBe(worker);
    }
    await sleep(writtenMs);
    const taken = await times(device);
    expect(taken.connected).toBeGreaterThan(0);
    await last.disconnect();
    await eventually(async () => (await times(device)).disconnected > taken.connected);
  });

  test('a connection that is ended with the credentials is a disconnect', async () => {
    const device = await newDevice();
    const client = await connectMqtt({ token: device.token });
    const credentials = await ok('GET', `/api/device/${device.id}/credentials`);
    await ok('POST', '/api/device/credentials', { ...credentials, credentialsId: `${device.token}-new` });
    await client.closedFor(0x98);
    await eventually(async () => (await times(device)).disconnected > 0);
  });
});
