/**
 * Faults below MQTT connections: a journal that refuses, a worker that dies, an engine that stops. Every acknowledged
 * message is stored. The client can send the others again, because it gets a reason or its connection ends.
 */
import { randomUUID } from 'node:crypto';
import { once } from 'node:events';
import { createConnection } from 'node:net';
import { setTimeout as sleep } from 'node:timers/promises';
import { afterAll, beforeAll, describe, expect, onTestFinished, test } from 'vitest';
import { fallen, firing } from '../harness/alerts.ts';
import { type Device, eventually } from '../harness/api.ts';
import { type Engine, type LogLine, startEngine } from '../harness/engine.ts';
import { connectBytes } from '../harness/mqtt-bytes.ts';
import { connectMqtt, type Level, type Login, levelName, levels, type MqttClient } from '../harness/mqtt-client.ts';
import { connectMqttOn } from '../harness/mqtt-workers.ts';
import { call, makeTenant } from '../harness/tenants.ts';

const telemetry = 'v1/devices/me/telemetry';
const backlogBytesMax = 300_000;

let engine: Engine;
beforeAll(async () => {
  engine = await startEngine({
    workers: 2,
    env: { HTTP_TELL_WORKER: 'true', JOURNAL_BACKLOG_BYTES_MAX: String(backlogBytesMax), SHIP_LATE_SECONDS_MAX: '1' },
  });
});
afterAll(() => engine?.destroy());

const newDevice = () => engine.api.newDevice();
const connect = (device: Device, level: Level, login: Login = {}) =>
  connectMqtt({ port: engine.mqttPort, level, token: device.token, ...login });

/** Values of a key, oldest first, once there are `count`. */
async function values(device: Device, key: string, count: number): Promise<unknown[]> {
  const now = Date.now();
  return await eventually(async () => {
    const read = await engine.api.readSeries(device.id, [key], { startTs: now - 600_000, endTs: now + 600_000 });
    const points = read[key] ?? [];
    return points.length >= count ? points.map(({ value }) => value) : undefined;
  }, 40_000);
}

async function discarded(): Promise<string[]> {
  const text = await engine.api.metrics();
  return text.split('\n').filter((line) => line.startsWith('mqtt_discarded_total{'));
}

async function backlogDiscards(): Promise<number> {
  const line = (await discarded()).find((text) => text.includes('{reason="backlog_full",qos="0"}'));
  return Number(line?.split(' ')[1] ?? 0);
}

describe('workers that stop for seconds', () => {
  /** Publishes with QoS 0 until `stop`, which returns the number of messages. */
  function keepPublishing(client: MqttClient): { stop: () => number } {
    const firstTs = Date.now() - 500_000;
    let sent = 0;
    const timer = setInterval(() => {
      for (let i = 0; i < 5; i += 1) {
        void client.publishQos0(telemetry, `{"ts":${firstTs + sent},"values":{"n":${sent}}}`);
        sent += 1;
      }
    }, 10);
    return {
      stop: () => {
        clearInterval(timer);
        return sent;
      },
    };
  }

  test('lose no message with QoS 0, and close no client whose PINGREQ they did not read', async () => {
    const senders = await Promise.all(
      ([3, 4, 5] as const).map(async (level) => {
        const device = await newDevice();
        // A disk that is busy with other tests may need longer than the second that a Keep Alive of 2 s leaves.
        const client = await connect(device, level, { keepAlive: 20 });
        return { device, client, ...keepPublishing(client) };
      }),
    );
    const silent = await Promise.all(levels.map(async (level) => connect(await newDevice(), level, { keepAlive: 2 })));
    const pings = setInterval(() => {
      for (const client of silent) void client.write({ cmd: 'pingreq' });
    }, 400);
    onTestFinished(() => {
      clearInterval(pings);
      for (const { stop } of senders) stop();
    });
    const before = await discarded();
    await sleep(300);
    const pids = engine.workers();
    for (const pid of pids) process.kill(pid, 'SIGSTOP');
    try {
      await sleep(3_500);
    } finally {
      for (const pid of pids) process.kill(pid, 'SIGCONT');
    }
    await sleep(500);
    // A client that sends nothing for its Keep Alive is closed: each client sends before the test waits.
    const sent = await Promise.all(
      senders.map(async ({ client, stop }) => {
        const count = stop();
        await client.quiet();
        client.cut();
        return count;
      }),
    );
    for (const [n, { device }] of senders.entries()) {
      expect(await values(device, 'n', sent[n]!)).toHaveLength(sent[n]!);
    }
    for (const client of silent) {
      await client.write({ cmd: 'pingreq' });
      await client.pick('pingresp');
      client.cut();
    }
    expect(await discarded()).toEqual(before);
  });
});

test('a CONNECT whose client has given up does not end the newer connection of the device', async () => {
  const device = await newDevice();
  const live = await connect(device, 5);
  const lost = () => counted('mqtt_disconnects_total{reason="connection_lost"}');
  const before = await lost();
  const pids = engine.workers();
  for (const pid of pids) process.kill(pid, 'SIGSTOP');
  try {
    // The kernel accepts for the workers, and keeps what the client has sent.
    const socket = createConnection(engine.mqttPort, '127.0.0.1');
    await once(socket, 'connect');
    const login = { clientId: 'gave up', username: device.token };
    await new Promise((resolve) => socket.write(connectBytes(login), resolve));
    socket.resetAndDestroy();
  } finally {
    for (const pid of pids) process.kill(pid, 'SIGCONT');
  }
  await eventually(async () => (await lost()) > before);
  await live.write({ cmd: 'pingreq' });
  await live.pick('pingresp');
  live.cut();
});

async function counted(name: string): Promise<number> {
  const line = (await engine.api.metrics()).split('\n').find((text) => text.startsWith(`${name} `));
  return Number(line?.split(' ')[1] ?? 0);
}

describe('a journal that refuses because ClickHouse is stopped', () => {
  /** Each is the token of a device of another tenant. */
  let tenantTokens: string[];

  beforeAll(async () => {
    const { adminPassword } = engine.api.address;
    const system = (await engine.api.login('sysadmin@millrace.local', adminPassword)).token;
    tenantTokens = await Promise.all(
      Array.from({ length: 5 }, async () => {
        const { admin } = await makeTenant(engine.api, system);
        const token = randomUUID();
        await call(engine.api, 'POST', `/api/device?accessToken=${token}`, { name: 'filler' }, admin.token);
        return token;
      }),
    );
  });

  /** Both workers refuse telemetry while `use` runs, and accept it again soon after `resume`. */
  async function withFullBacklog(use: (resume: () => void) => Promise<void>): Promise<void> {
    const pid = engine.pids().get('clickhouse')!;
    process.kill(pid, 'SIGSTOP');
    try {
      for (const worker of [0, 1]) await fill(worker);
      await use(() => process.kill(pid, 'SIGCONT'));
    } finally {
      process.kill(pid, 'SIGCONT');
    }
    await eventually(async () => (await engine.readiness()) === 200, 20_000);
  }

  /** Publishes for several tenants until this worker takes no more: a tenant alone gets only its share. */
  async function fill(worker: number): Promise<void> {
    const clients = await Promise.all(
      tenantTokens.map((token) => connectMqttOn(worker, { port: engine.mqttPort, token, keepAlive: 2 })),
    );
    for (let n = 0; n < 200; n += 1) {
      const ack = await clients[n % clients.length]!.publish(telemetry, JSON.stringify({ fill: 'x'.repeat(50_000) }));
      if ((ack.reasonCode ?? 0) >= 0x80) {
        expect(ack.reasonCode).toBe(0x97);
        // A busy machine also refuses for other reasons for a while, as does a tenant that has used up its share.
        if (/JOURNAL_BACKLOG_BYTES_MAX/.test(ack.properties?.reasonString ?? '')) {
          for (const client of clients) client.cut();
          return;
        }
      }
      await sleep(20);
    }
    throw new Error('the journal never refused');
  }

  test('clients are not read for a moment; then MQTT 5 gets 0x97 and stays, MQTT 3 is closed without PUBACK', async () => {
    const devices = [await newDevice(), await newDevice(), await newDevice(), await newDevice()] as const;
    const began = engine.events().length;
    await withFullBacklog(async (resume) => {
      // A busy machine refuses because of its load before the store counts as unavailable.
      await eventually(async () => {
        const { code, status, parts = {} } = await engine.status();
        return code === 503 && status === 'refusing' && parts.clickhouse === 'away' && parts.workers === 'up';
      }, 20_000);
      expect(await engine.metric('refusing')).toBe(2);
      expect(await engine.metric('store_up{store="clickhouse"}')).toBe(0);
      const alerts = ['MillraceRefusing', 'MillraceRefusalNear', 'MillraceJournalFills', 'MillraceStoreDown'];
      expect(firing(await engine.api.metricsPage())).toEqual(expect.arrayContaining(alerts));
      const five = await connect(devices[0], 5, { keepAlive: 6 });
      const before = performance.now();
      expect((await five.publish(telemetry, '{"five":1}')).reasonCode).toBe(0x97);
      expect(performance.now() - before).toBeGreaterThan(2_400);
      // QoS 0 has no answer: after the wait it is discarded, which is counted and logged.
      const counted = await backlogDiscards();
      await five.publishQos0(telemetry, '{"zero":1}');
      await five.quiet();
      expect(await backlogDiscards()).toBe(counted + 1);
      const line = `"event":"mqtt_discarded","device":"${devices[0].id}","messages":1,"reason":"backlog_full"`;
      await eventually(() => engine.output.includes(line));
      five.cut();

      // The connection ends after half of a keep-alive of two seconds. Nothing was acknowledged, so the client sends
      // the message again.
      const short: MqttClient[] = [
        await connect(devices[1], 3, { keepAlive: 2 }),
        await connect(devices[2], 4, { keepAlive: 2 }),
      ];
      await Promise.all(
        short.map(async (client) => {
          const before = performance.now();
          await client.write(client.publishPacket(telemetry, '{"short":1}'), { cmd: 'pingreq' });
          await client.closed();
          expect(client.received).toEqual([]);
          expect(performance.now() - before).toBeGreaterThan(400);
        }),
      );

      // The worker accepts telemetry again before the deadline, so the client notices nothing.
      const patient = await connect(devices[3], 4, { keepAlive: 60 });
      await patient.write(patient.publishPacket(telemetry, '{"patient":1}', { messageId: 1 }), { cmd: 'pingreq' });
      await patient.nothingFor(300);
      resume();
      await patient.pick('puback', { messageId: 1 });
      await patient.pick('pingresp');
      const later = await connect(devices[0], 5);
      await eventually(async () => (await later.publish(telemetry, '{"five":2}')).reasonCode === 0);
      later.cut();
      patient.cut();
    });
    expect(await values(devices[3], 'patient', 1)).toEqual([1]);
    expect(await values(devices[0], 'five', 1)).toEqual([2]);
    // Two workers, many refused messages and many failed inserts: one event for each change of state of the host.
    const since = () => engine.events().slice(began);
    await eventually(() => since().some(({ event }) => event === 'ingest_accepting'), 20_000);
    // A busy machine refuses because of its load as well.
    const isOfLoad = ({ reason }: LogLine) => reason === 'loop_lag' || reason === 'journal_slow';
    const events = since().filter((line) => !isOfLoad(line));
    expect(events.filter(({ event }) => event === 'store_back')).toMatchObject([{ store: 'clickhouse' }]);
    const ends = events.filter(({ event }) => event === 'ingest_accepting');
    expect(Math.max(...ends.map(({ seconds }) => Number(seconds)))).toBeGreaterThan(1);
    expect(Math.max(...ends.map(({ messages }) => Number(messages)))).toBeGreaterThan(3);
    const loud = events.filter(({ level, event }) => level === 'warn' && event !== 'mqtt_discarded');
    const names = loud.map(({ event, reason }) => (event === 'ingest_refusing' ? `${event} ${reason}` : event));
    expect(new Set(names)).toEqual(new Set(['store_away', 'ingest_refusing backlog_full']));
    expect(await engine.metric('refusing')).toBe(0);
    expect(await engine.metric('store_up{store="clickhouse"}')).toBe(1);
    // A key that was never stored reads as null.
    const latest = async (device: Device, key: string) =>
      (await engine.api.readLatest(device.id, [key]))[key]?.[0]?.value;
    expect(await latest(devices[0], 'zero')).toBe(null);
    for (const device of [devices[1], devices[2]]) expect(await latest(device, 'short')).toBe(null);
  });

  test('messages of a gateway after a large one share its wait: all of them are refused soon', async () => {
    const hub = await engine.api.createGateway('hub');
    await withFullBacklog(async () => {
      const client = await connect(hub, 5);
      const bodies = [{ text: 'x'.repeat(300_000) }, ...Array.from({ length: 6 }, (_, n) => ({ n }))];
      const packets = bodies.map((body) =>
        client.publishPacket('v1/gateway/telemetry', JSON.stringify({ child: [body] })),
      );
      const before = performance.now();
      await client.write(...packets);
      for (const { messageId } of packets) {
        expect((await client.pick('puback', { messageId: messageId! })).reasonCode).toBe(0x97);
      }
      expect(performance.now() - before).toBeLessThan(20_000);
      client.cut();
    });
  });
});

test('a worker that is killed takes only its own connections with it, and they come back', async () => {
  const [lost, kept] = [await newDevice(), await newDevice()];
  const onFirst = await connectMqttOn(0, { port: engine.mqttPort, token: lost.token });
  const onSecond = await connectMqttOn(1, { port: engine.mqttPort, token: kept.token });
  expect((await onFirst.publish(telemetry, '{"before":1}')).reasonCode).toBe(0);
  const earlier = await engine.api.metricsPage();
  const accepted = (await engine.metric('ingest_messages_total'))!;
  expect(accepted).toBeGreaterThan(0);
  await engine.kill('worker-0');
  // The page without the killed worker, before another one starts.
  expect(await engine.metric('ingest_messages_total')).toBeGreaterThanOrEqual(accepted);
  await onFirst.closed();
  expect((await onSecond.publish(telemetry, '{"beside":1}')).reasonCode).toBe(0);
  const again = await eventually(() => connect(lost, 5), 10_000);
  expect((await again.publish(telemetry, '{"after":1}')).reasonCode).toBe(0);
  expect(await values(lost, 'before', 1)).toEqual([1]);
  expect(await values(lost, 'after', 1)).toEqual([1]);
  expect(await values(kept, 'beside', 1)).toEqual([1]);
  onSecond.cut();
  again.cut();
  await eventually(() => engine.workers().length === 2);
  const later = await engine.api.metricsPage();
  expect(firing(later, earlier)).toContain('MillraceWorkerRestarts');
  expect(fallen(later, earlier)).toEqual([]);
});

test('SIGTERM: every client gets a reason, acknowledged messages are stored, and no others', async () => {
  const clients: { level: Level; device: Device; client: MqttClient; acknowledged: number }[] = [];
  for (const level of levels) {
    const device = await newDevice();
    clients.push({ level, device, client: await connect(device, level), acknowledged: 0 });
  }
  const firstTs = Date.now() - 100_000;
  // Each client publishes until its connection ends.
  const ended = clients.map(async (one) => {
    const { client, level } = one;
    for (let n = 0; ; n += 1) {
      const packet = client.publishPacket(telemetry, `{"ts":${firstTs + n},"values":{"n":${n}}}`, { messageId: n + 1 });
      await client.write(packet);
      const answer = await client.next(20_000).catch(() => undefined);
      if (answer?.cmd !== 'puback') return { level, last: answer };
      one.acknowledged += 1;
    }
  });
  await eventually(() => clients.every(({ acknowledged }) => acknowledged > 20));
  await engine.stop();
  for (const { level, last } of await Promise.all(ended)) {
    if (level === 5) expect(last, levelName[level]).toMatchObject({ cmd: 'disconnect', reasonCode: 0x8b });
    else expect(last, levelName[level]).toBeUndefined();
  }
  await engine.start();
  for (const { device, acknowledged } of clients) {
    const stored = await values(device, 'n', acknowledged);
    expect(stored.slice(0, acknowledged)).toEqual(Array.from({ length: acknowledged }, (_, n) => n));
  }
});
