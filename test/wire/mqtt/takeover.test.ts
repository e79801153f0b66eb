/** A device has one session: a newer one ends the older, with any client id, on any worker (docs/mqtt.md#sessions). */
import { randomUUID } from 'node:crypto';
import { once } from 'node:events';
import { connect } from 'node:net';
import { setTimeout as sleep } from 'node:timers/promises';
import { expect, test } from 'vitest';
import { eventually } from '../../harness/api.ts';
import { connectBytes, publishBytes } from '../../harness/mqtt-bytes.ts';
import { connectMqtt, levelName, levels, type MqttClient, withMqtt } from '../../harness/mqtt-client.ts';
import { telemetry } from '../../harness/mqtt-device.ts';
import { connectMqttOn } from '../../harness/mqtt-workers.ts';
import { mqttPort, newDevice } from '../../harness/shared-engine.ts';

const takenOver = 0x8e;

for (const level of levels) {
  test(`${levelName[level]}: a second connection of a device ends the first`, async () => {
    const { token } = await newDevice();
    const old = await connectMqtt({ token, level, clientId: 'old' });
    await withMqtt({ token, level, clientId: 'young' }, async (young) => {
      await old.closedFor(takenOver);
      await young.quiet();
      expect((await young.publish(telemetry, '{"a":1}')).reasonCode ?? 0).toBe(0);
    });
  });
}

test('an older connection whose client does not notice the end and sends on is cut', async () => {
  const { token } = await newDevice();
  const old = connect({ port: mqttPort(), host: '127.0.0.1', allowHalfOpen: true });
  const closed = new Promise((resolve) => old.on('error', () => {}).on('close', resolve));
  old.write(connectBytes({ username: token }));
  await once(old, 'data');
  old.resume();
  const sending = setInterval(() => old.write(publishBytes({ topic: telemetry, payload: '{"a":1}' })), 100);
  await withMqtt({ token }, async (young) => {
    await once(old, 'end');
    await Promise.race([closed, sleep(10_000, undefined, { ref: false })]);
    clearInterval(sending);
    expect(old.destroyed).toBe(true);
    await young.quiet();
  });
});

test('two devices with the same client id both stay', async () => {
  const [one, two] = [await newDevice(), await newDevice()];
  await withMqtt({ token: one.token, clientId: 'same' }, (first) =>
    withMqtt({ token: two.token, clientId: 'same' }, async (second) => {
      await second.nothingFor(200);
      await first.quiet();
      await second.quiet();
    }),
  );
});

test('the newer connection wins across workers, both ways', async () => {
  const { token } = await newDevice();
  for (const [from, to] of [
    [0, 1],
    [1, 0],
  ] as const) {
    const old = await connectMqttOn(from, { token });
    const young = await connectMqttOn(to, { token });
    await old.closedFor(takenOver);
    await young.nothingFor(100);
    await young.quiet();
    young.cut();
  }
});

test('of many that connect at once over all workers exactly one stays', async () => {
  const { token } = await newDevice();
  for (let round = 0; round < 5; round += 1) {
    const clients = await Promise.all(
      Array.from({ length: 12 }, async () => {
        const client = await connectMqtt({ token }).catch(() => undefined);
        return client;
      }),
    );
    const opened = clients.filter((client): client is MqttClient => client !== undefined);
    const living = () => opened.filter(({ isClosed }) => !isClosed);
    await eventually(() => living().length <= 1);
    await new Promise((resolve) => setTimeout(resolve, 100));
    expect(living()).toHaveLength(1);
    await living()[0]!.quiet();
    for (const client of opened) client.cut();
  }
});

test('a device that reconnects again and again is never left without its last connection', async () => {
  const { token } = await newDevice();
  let last: MqttClient | undefined;
  for (let i = 0; i < 30; i += 1) last = await connectMqtt({ token, clientId: randomUUID() });
  await last!.nothingFor(300);
  await last!.quiet();
  last!.cut();
});
