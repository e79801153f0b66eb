/**
 * Stops that take seconds: the delay for a balancer, however the signals arrive, and MQTT clients that are handed over
 * a few at a time.
 */
import { setTimeout as sleep } from 'node:timers/promises';
import { expect, test } from 'vitest';
import { eventually } from '../harness/api.ts';
import { type Engine, startEngine } from '../harness/engine.ts';
import { connectMqtt, MqttClient } from '../harness/mqtt-client.ts';
import { RawWebSocket } from '../harness/web-socket.ts';

const firstTs = Date.now() - 3_600_000;

test.each([
  ['the primary', ({ pid }: Engine) => [pid!]],
  ['its process group', ({ pid }: Engine) => [-pid!]],
  // The signals are sent as by Ctrl-C below `npm start`.
  ['its process group and then the primary', ({ pid }: Engine) => [-pid!, pid!]],
  // The signals are sent as by systemd, unless KillMode is set.
  ['every process, the stores as well,', (all: Engine) => [...new Set([all.pid!, ...all.pids().values()])]],
])('a stop of %s with SHUTDOWN_DELAY_MS: not ready, and served until the delay is over', async (_name, signalled) => {
  const delayMs = 4_000;
  const leaving = await startEngine({ workers: 1, reports: true, env: { SHUTDOWN_DELAY_MS: String(delayMs) } });
  try {
    const { token, id } = await leaving.api.createDevice('behind a balancer');
    const begun = performance.now();
    for (const pid of signalled(leaving)) {
      process.kill(pid, 'SIGTERM');
      await eventually(() => leaving.output.includes('SIGTERM: /readyz answers 503'));
    }
    await eventually(async () => (await leaving.readiness()) === 503);
    expect((await fetch(`${leaving.api.http}/readyz`)).status).toBe(503);
    let accepted = 0;
    while (performance.now() - begun < delayMs / 2) {
      const response = await fetch(`${leaving.api.http}/api/v1/${token}/telemetry`, {
        method: 'POST',
        headers: { connection: 'close' },
        body: `{"ts":${firstTs + accepted},"values":{"n":${accepted}}}`,
      });
      expect(response.status).toBe(200);
      accepted += 1;
    }
    expect((await leaving.exit()).code).toBe(0);
    expect(performance.now() - begun).toBeGreaterThan(delayMs);
    expect(leaving.output).not.toMatch(/"event":"(child_died|clickhouse_died|worker_failed)"/);
    await leaving.start();
    const stored = await leaving.api.readSeries(id, ['n'], { startTs: firstTs, endTs: firstTs + accepted });
    expect(stored.n?.length).toBe(accepted);
  } finally {
    await leaving.destroy();
  }
});

test('with SHUTDOWN_EVICT_PER_SECOND MQTT clients leave a few at a time, each with its last answer', async () => {
  const [clients, perSecond] = [24, 8];
  const env = { SHUTDOWN_EVICT_PER_SECOND: String(perSecond), MQTT_SERVER_REFERENCE: 'other.example:1883' };
  const leaving = await startEngine({ workers: 2, env });
  try {
    const { token, id } = await leaving.api.createDevice('many clients');
    const others = await Promise.all(
      Array.from({ length: clients - 1 }, (_, n) => leaving.api.createDevice(`one of many ${n}`)),
    );
    const tokens = [token, ...others.map((other) => other.token)];
    const connected = await Promise.all(
      tokens.map((each, n) => connectMqtt({ token: each, level: n % 2 === 0 ? 5 : 4, port: leaving.mqttPort })),
    );
    let acknowledged = 0;
    const ends = connected.map(async (client, n) => {
      for (let sent = 0; ; sent += 1) {
        const values = `{"ts":${firstTs + sent},"values":{"n":${sent}}}`;
        await client.write(client.publishPacket('v1/devices/me/telemetry', values, { messageId: sent + 1 }));
        const last = await client.next(20_000).catch(() => undefined);
        if (last?.cmd !== 'puback') return { at: performance.now(), last, level: n % 2 === 0 ? 5 : 4 };
        if (n === 0) acknowledged += 1;
        await sleep(20);
      }
    });
    await eventually(() => acknowledged > 3);
    await leaving.stop();
    const ended = await Promise.all(ends);
    for (const { last, level } of ended) {
      const expected = { cmd: 'disconnect', reasonCode: 0x9c, properties: { serverReference: 'other.example:1883' } };
      if (level === 5) expect(last).toMatchObject(expected);
      else expect(last).toBeUndefined();
    }
    const times = ended.map(({ at }) => at).sort((a, b) => a - b);
    // The last of 12 clients of a worker leaves 11 quarters of a second after the first, at the earliest.
    expect(times.at(-1)! - times[0]!).toBeGreaterThan((0.7 * 1000 * (clients - 2)) / perSecond);
    await leaving.start();
    const stored = await leaving.api.readSeries(id, ['n'], { startTs: firstTs, endTs: firstTs + 100_000 });
    expect(stored.n?.length).toBeGreaterThanOrEqual(acknowledged);
  } finally {
    await leaving.destroy();
  }
});

test('a host that hands its clients over takes no new ones, nor does a worker that starts meanwhile; HTTP is served', async () => {
  const leaving = await startEngine({ workers: 2, env: { SHUTDOWN_EVICT_PER_SECOND: '1' } });
  const clients: MqttClient[] = [];
  const { port, mqttPort } = leaving;
  const upgradeStatus = async () => {
    const socket = await RawWebSocket.open(port);
    socket.close();
    return socket.upgrade.status;
  };
  const isRefused = () => MqttClient.open({ port: mqttPort }).then(cut, ({ code }) => code === 'ECONNREFUSED');
  const cut = (client: MqttClient) => {
    client.cut();
    return false;
  };
  try {
    const { token } = await leaving.api.createDevice('served over HTTP');
    const devices = await Promise.all(Array.from({ length: 40 }, () => leaving.api.newDevice()));
    for (const each of devices) clients.push(await connectMqtt({ token: each.token, port: mqttPort }));
    process.kill(leaving.pid!, 'SIGTERM');
    await eventually(isRefused);
    await eventually(async () => (await upgradeStatus()) === 503);
    const killed = await leaving.kill('worker-0');
    await eventually(() => (leaving.pids().get('worker-0') ?? killed) !== killed, 30_000);
    await eventually(async () => (await leaving.status()).parts?.['workers'] === 'up', 30_000);
    await eventually(isRefused);
    for (let n = 0; n < 20; n += 1) {
      expect(await isRefused()).toBe(true);
      expect(await upgradeStatus()).toBe(503);
      expect(await leaving.api.postTelemetry(token, '{"a":1}')).toBe(200);
    }
    expect(clients.some(({ isClosed }) => !isClosed)).toBe(true);
  } finally {
    for (const client of clients) client.cut();
    await leaving.destroyAtOnce();
  }
});
