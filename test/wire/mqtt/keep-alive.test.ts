/**
 * A connection ends after silence of one and a half times the keep-alive; any packet in time prevents that
 * ([MQTT-3.1.2-22]).
 */
import { setTimeout as sleep } from 'node:timers/promises';
import { describe, expect, test } from 'vitest';
import { levels, type MqttClient } from '../../harness/mqtt-client.ts';
import { telemetry, withDevice } from '../../harness/mqtt-device.ts';

/** The rule is the same for all versions, and all of them are tested at the same time, to save time. */
function inAllVersions(rule: string, keepAlive: number, use: (client: MqttClient) => Promise<unknown>): void {
  test(rule, () => Promise.all(levels.map((level) => withDevice({ level, keepAlive }, use))));
}

/** The pauses together are longer than the silence that ends the connection, and each is shorter by three seconds. */
async function keepsAlive(client: MqttClient, speak: () => Promise<unknown>): Promise<void> {
  for (let n = 0; n < 3; n += 1) {
    await speak();
    await sleep(2_800);
  }
  await client.quiet();
}

describe.concurrent('keep-alive', () => {
  inAllVersions('case 12: silence ends the connection with 0x8D, not sooner than it should', 1, async (client) => {
    const before = performance.now();
    await client.closedFor(0x8d, 15_000);
    expect(performance.now() - before).toBeGreaterThan(1_400);
  });

  inAllVersions('PINGREQ alone keeps it', 4, (client) => keepsAlive(client, () => client.quiet()));

  inAllVersions('QoS 0 alone keeps it', 4, (client) => {
    return keepsAlive(client, () => client.publishQos0(telemetry, '{"a":1}'));
  });

  inAllVersions('half a packet is no sign of life', 1, async (client) => {
    await client.send(Buffer.from([0x30, 50]));
    await client.closedFor(0x8d, 15_000);
  });

  inAllVersions('0 switches it off', 0, async (client) => {
    await sleep(4_000);
    await client.quiet();
  });
});
