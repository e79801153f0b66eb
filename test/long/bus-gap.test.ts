/**
 * A gap of the bus with many sessions, over a Redis that disconnects a subscriber for which half a megabyte waits: the
 * workers announce their sessions again at a pace that Redis and each other take, so that no further gap follows.
 */
import { setTimeout as sleep } from 'node:timers/promises';
import { afterAll, expect, test } from 'vitest';
import { systemClock as clock } from '../../src/base/clock.ts';
import { createLog } from '../../src/base/log.ts';
import { Metrics } from '../../src/base/metrics/metrics.ts';
import { openBus } from '../../src/bus/open.ts';
import { LocalDevices } from '../../src/device/local-devices.ts';
import { openChannels } from '../../src/downlink/device-channels.ts';
import { Downlink } from '../../src/downlink/downlink.ts';
import { Sessions } from '../../src/downlink/sessions.ts';
import { eventually } from '../harness/api.ts';
import { RedisNodes } from '../harness/redis-nodes.ts';

const workerCount = 4;
const sessionsOfWorker = 12_000;
/** Sessions of one device on two workers, made while the bus is cut. */
const doubled = 50;
const connectedMsMax = 30_000;
/** All sessions are announced again within 20 s. */
const repeatedMsMax = 60_000;

const log = createLog('fatal', 'test');
const redis = new RedisNodes();

afterAll(() => redis.remove());

async function openWorker(url: string) {
  const metrics = new Metrics();
  const bus = await openBus({ redis: { url }, installation: 'gap', log, metrics });
  const channels = openChannels(bus);
  const sessions = new Sessions({
    ...{ bus, channels: channels.sessions, devices: new LocalDevices(), clock, log, metrics },
    lookUp: async () => [],
    onConnected() {},
    onDisconnected() {},
  });
  const downlink = new Downlink({ bus, channels, log, metrics });
  await downlink.start();
  let gaps = 0;
  bus.onReconnect(() => {
    gaps += 1;
  });
  const connect = (number: number) => {
    const row = { number, id: `id-${number}`, tenantId: 't', customerId: null, profileId: 'p', name: '', version: 1 };
    const leave = downlink.listen(number, 'rpc', { receive: () => true, close() {} });
    const session = sessions.open(row, {
      sessionEnded() {
        leave();
        session.end();
      },
    });
  };
  const count = (name: string) => metrics.snapshot().find((sample) => sample.name === name)?.value ?? 0;
  return { bus, sessions, downlink, connect, gaps: () => gaps, count };
}

test('all workers are connected again and stay so, and of two sessions of a device one stays', async () => {
  const limit = ['--client-output-buffer-limit', 'pubsub', '1mb', '512kb', '5'];
  const server = await redis.one({ args: limit });
  const workers = await Promise.all(Array.from({ length: workerCount }, () => openWorker(server.url)));
  await eventually(() => workers.every(({ bus }) => bus.connected));
  for (let n = 0; n < sessionsOfWorker; n += 1) {
    for (const [place, { connect }] of workers.entries()) connect(1 + n * workerCount + place);
    if (n % 100 === 0) await sleep(1);
  }
  const channels = () => Number(server.cli('eval', "return #redis.call('pubsub', 'channels')", 0));
  const subscribed = workerCount * sessionsOfWorker;
  await eventually(() => channels() >= subscribed, connectedMsMax);
  await sleep(1_000);
  const gapsBefore = workers.map(({ gaps }) => gaps());
  const publishedBefore = workers.map(({ count }) => count('bus_published_total'));

  server.cli('client', 'kill', 'type', 'pubsub');
  await eventually(
    () => workers.every(({ bus }) => !bus.connected) || workers.every(({ gaps }, n) => gaps() > gapsBefore[n]!),
  );
  const [one, two] = workers as [(typeof workers)[0], (typeof workers)[0]];
  for (let n = 0; n < doubled; n += 1) {
    one.connect(10_000_000 + n);
    two.connect(10_000_000 + n);
  }
  await eventually(() => workers.every(({ bus, gaps }, n) => bus.connected && gaps() > gapsBefore[n]!), connectedMsMax);
  const published = workers.map(({ count }) => count('bus_published_total'));
  await sleep(1_000);
  for (const [n, { count }] of workers.entries()) {
    // A session and a listener each, at 5 % a second.
    expect(count('bus_published_total') - published[n]!).toBeLessThan(0.15 * 2 * sessionsOfWorker);
  }
  await eventually(
    () => workers.every(({ count }, n) => count('bus_published_total') - publishedBefore[n]! >= 2 * sessionsOfWorker),
    repeatedMsMax,
  );
  expect(workers.map(({ gaps }, n) => gaps() - gapsBefore[n]!)).toEqual(workers.map(() => 1));
  expect(workers.every(({ bus }) => bus.connected)).toBe(true);
  const sum = workers.reduce((total, { sessions }) => total + sessions.size, 0);
  expect(sum).toBe(subscribed + doubled);
  for (const { bus, sessions, downlink } of workers) {
    downlink.stop();
    await sessions.stop();
    await bus.close();
  }
}, 240_000);
