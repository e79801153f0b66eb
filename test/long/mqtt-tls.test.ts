/** MQTT over TLS for longer than the time after which a client that reads nothing is closed. */
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { limits } from '../../src/base/limits.ts';
import { createCertificate, mqttsSettings } from '../harness/certificate.ts';
import { type Engine, startEngine } from '../harness/engine.ts';
import { connectMqtt, type MqttClient } from '../harness/mqtt-client.ts';
import { freePort } from '../harness/ports.ts';

let engine: Engine;
let directory: string;
let port: number;
let ca: string;

beforeAll(async () => {
  directory = mkdtempSync(join(tmpdir(), 'millrace-mqtts-'));
  const certificate = createCertificate(directory, 'server');
  ca = certificate.pem;
  port = await freePort();
  engine = await startEngine({ workers: 1, env: mqttsSettings(port, certificate) });
});

afterAll(async () => {
  await engine?.destroy();
  rmSync(directory, { recursive: true });
});

async function connect(name: string): Promise<MqttClient> {
  const { token } = await engine.api.createDevice(name);
  return await connectMqtt({ port, tls: { ca }, token });
}

const publish = (client: MqttClient) => client.publish('v1/devices/me/telemetry', '{"a":1}');

test('a client that publishes now and then, and one that is silent for long, stay connected', async () => {
  const [busy, silent] = await Promise.all([connect('busy'), connect('silent')]);
  const end = performance.now() + limits.mqttStallMsMax + 3 * limits.mqttSweepMs;
  while (performance.now() < end) {
    expect((await publish(busy)).reasonCode).toBe(0);
    await sleep(limits.mqttSweepMs);
  }
  expect((await publish(silent)).reasonCode).toBe(0);
  for (const client of [busy, silent]) client.cut();
});
