/**
 * Mutated packet streams into a live engine, from a seed: bits flipped, bytes lost, packets spliced, lengths that lie, any
 * order. Beside them a healthy connection publishes: each of its messages is acknowledged and stored, no process ends,
 * no connection stays counted. MQTT_FUZZ_SECONDS makes it longer, MQTT_FUZZ_SEED tells a failure again.
 */
import { readFileSync } from 'node:fs';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { type Device, eventually } from '../harness/api.ts';
import { type Engine, startEngine } from '../harness/engine.ts';
import { connectMqtt, type Level, levels, MqttClient } from '../harness/mqtt-client.ts';
import { Random } from '../harness/random.ts';
import { mutate, validStream } from './mqtt-mutations.ts';

const seconds = Number(process.env['MQTT_FUZZ_SECONDS'] ?? 5);
const seed = Number(process.env['MQTT_FUZZ_SEED'] ?? Math.floor(Math.random() * 1_000_000));
const attackers = 6;
const rssGrowthBytesMax = 200 * 1024 * 1024;

let engine: Engine;
beforeAll(async () => {
  engine = await startEngine({ workers: 2 });
});
afterAll(() => engine?.destroy());

/** Open MQTT connections of all workers. */
async function connections(): Promise<number> {
  const text = await engine.api.metrics();
  const lines = text.split('\n').filter((line) => /^\w*mqtt_connections(\{|\s)/.test(line));
  expect(lines.length).toBeGreaterThan(0);
  return lines.reduce((sum, line) => sum + Number(line.slice(line.lastIndexOf(' ') + 1)), 0);
}

function residentBytes(): number {
  const kilobytes = (pid: number) => Number(/VmRSS:\s+(\d+)/.exec(readFileSync(`/proc/${pid}/status`, 'utf8'))?.[1]);
  return engine.workers().reduce((sum, pid) => sum + kilobytes(pid) * 1024, 0);
}

/** Publishes until told to stop; each must be acknowledged. Tells how many. */
async function healthy(device: Device, level: Level, firstTs: number, going: () => boolean): Promise<number> {
  const client = await connectMqtt({ port: engine.mqttPort, level, token: device.token });
  let count = 0;
  let sent = 0;
  while (going()) {
    const body = `{"ts":${firstTs + count},"values":{"beat":${count}}}`;
    sent += 1;
    const ack = await client.publish('v1/devices/me/telemetry', body, { messageId: (sent % 65_535) + 1 });
    // An engine on a busy machine may ask to send again; nothing else is as it should be.
    const isBusy = ack.reasonCode === 0x97;
    if (!isBusy) expect(ack.reasonCode ?? 0).toBe(0);
    if (!isBusy) count += 1;
  }
  await client.disconnect();
  return count;
}

/** One broken stream after the other, each on a connection of its own. */
async function attack(random: Random, device: Device, going: () => boolean): Promise<number> {
  let streams = 0;
  for (; going(); streams += 1) {
    const level = random.pick(levels);
    const bytes = mutate(random, validStream(random, level, device.token));
    const client = await MqttClient.open({ port: engine.mqttPort, level });
    // Our own reader may see what it cannot read: what a mutated CONNECT asked for is another version.
    client.stream.removeAllListeners('data');
    client.stream.resume();
    const pieceBytes = random.next() < 0.5 ? bytes.length : 1 + random.below(bytes.length);
    await client.sendInPieces(bytes, pieceBytes);
    if (random.next() < 0.5) client.stream.end();
    await client.closed(20 + random.below(60)).catch(() => {});
    client.cut();
  }
  return streams;
}

// Never tried again: another seed would hide what was found.
test('broken streams end their own connections and nothing else', {
  retry: 0,
  timeout: 60_000 + seconds * 1_000,
}, async () => {
  const random = new Random(seed);
  const devices = await Promise.all(
    Array.from({ length: attackers + 2 }, (_, n) => engine.api.createDevice(`fuzz-${n}`)),
  );
  for (const { id } of devices.slice(-2)) {
    const device = await (await engine.api.send('GET', `/api/device/${id}`)).json();
    const asGateway = { ...(device as object), additionalInfo: { gateway: true } };
    expect((await engine.api.send('POST', '/api/device', asGateway)).status).toBe(200);
  }
  const [first, second, ...victims] = devices as [Device, Device, ...Device[]];
  const pids = engine.workers().sort();
  const connectionsBefore = await connections();
  const firstTs = Date.now() - 3_600_000;

  const deadline = performance.now() + seconds * 1_000;
  const going = () => performance.now() < deadline;
  // A first round warms caches and code; what is resident after it is what growth is held against.
  let residentBefore = 0;
  setTimeout(() => (residentBefore = residentBytes()), seconds * 400);
  const [beats, otherBeats, ...streams] = await Promise.all([
    healthy(first, 5, firstTs, going),
    healthy(second, 4, firstTs, going),
    ...victims.map((device) => attack(new Random(random.below(2 ** 31)), device, going)),
  ]);

  // The seed stands in the failure: MQTT_FUZZ_SEED=<seed> tells the same story again.
  const told = { seed, streams: streams.reduce((sum, n) => sum + n, 0), beats, otherBeats };
  expect(told.streams, JSON.stringify(told)).toBeGreaterThan(100);
  expect(engine.workers().sort(), JSON.stringify(told)).toEqual(pids);
  await eventually(async () => (await connections()) === connectionsBefore);
  expect(residentBytes() - residentBefore, JSON.stringify(told)).toBeLessThan(rssGrowthBytesMax);
  for (const [device, count] of [
    [first, beats],
    [second, otherBeats],
  ] as const) {
    const rows = () =>
      engine.clickhouse(
        `SELECT count(), uniqExact(ts), sum(int) FROM telemetry FINAL WHERE key = 'beat' AND device IN ` +
          `(SELECT device FROM telemetry WHERE key = 'who' AND text = '${device.id}')`,
      );
    await eventually(async () => (await engine.api.postTelemetry(device.token, `{"who":"${device.id}"}`)) === 200);
    const expected = [String(count), String(count), String((count * (count - 1)) / 2)];
    let stored: unknown;
    const isStored = async () => {
      stored = (await rows())[0];
      return JSON.stringify(stored) === JSON.stringify(expected);
    };
    await eventually(isStored, 20_000).catch(() => {});
    expect({ ...told, stored }).toEqual({ ...told, stored: expected });
  }
});
