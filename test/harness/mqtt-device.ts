/**
 * A device of the shared engine that speaks MQTT, and its stored telemetry. To prove that a message was not stored,
 * tests post markers on every worker afterwards and wait for these.
 */
import { expect } from 'vitest';
import { type Device, eventually } from './api.ts';
import { codeOf, type Login, MqttClient, type Transport } from './mqtt-client.ts';
import { newDevice, sharedEngine } from './shared-engine.ts';
import { aroundNow, pointsOf, type StoredPoint } from './stored.ts';
import { withWorkers } from './workers.ts';

export const telemetry = 'v1/devices/me/telemetry';

/** Connects a new device, and cuts the connection when `use` has ended. */
export async function withDevice<T>(
  options: Transport & Omit<Login, 'token'>,
  use: (client: MqttClient, device: Device) => Promise<T>,
): Promise<T> {
  const device = await newDevice();
  const client = await MqttClient.open(options);
  try {
    expect(codeOf(await client.connect({ ...options, token: device.token }))).toBe(0);
    return await use(client, device);
  } finally {
    client.cut();
  }
}

/** Returns the points of a key once there are `count` of them. */
export function storedPoints(device: Device, key: string, count = 1, range = aroundNow()): Promise<StoredPoint[]> {
  return eventually(async () => {
    const points = pointsOf(await sharedEngine().readSeriesText(device.id, [key], range), key);
    return points.length >= count ? points : undefined;
  }, 15_000);
}

/** Returns the JSON of a key's values, oldest first, once there are `count` of them. */
export async function storedValues(device: Device, key: string, count = 1): Promise<string[]> {
  return (await storedPoints(device, key, count)).map(({ value }) => value);
}

/** Returns every key of the device, once all messages that any worker has acknowledged so far are stored. */
export async function storedKeys(device: Device): Promise<string[]> {
  const markers = await withWorkers(sharedEngine().address.port, async (connections) => {
    const keys: string[] = [];
    for (const [worker, connection] of connections.entries()) {
      // One marker for each lane of the journal: the lanes are shipped separately.
      for (const body of [`{"~marker-${worker}":1}`, `{"ts":1,"values":{"~old-marker-${worker}":1}}`]) {
        const answer = await connection.ask({ path: `/api/v1/${device.token}/telemetry`, body });
        expect(answer.status).toBe(200);
      }
      keys.push(`~marker-${worker}`, `~old-marker-${worker}`);
    }
    return keys;
  });
  const latest = await eventually(async () => {
    const values = await sharedEngine().readLatest(device.id);
    return markers.every((marker) => values[marker]) ? values : undefined;
  }, 15_000);
  return Object.keys(latest)
    .filter((key) => !key.startsWith('~'))
    .sort();
}
