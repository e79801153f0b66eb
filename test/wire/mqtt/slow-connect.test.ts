/**
 * CONNECT has to arrive within 30 seconds after the connection (docs/mqtt.md#connect): a client that sends nothing and
 * one that sends single bytes are closed alike.
 */
import { setTimeout as sleep } from 'node:timers/promises';
import { connect } from 'node:tls';
import { describe, expect, test } from 'vitest';
import { connectBytes } from '../../harness/mqtt-bytes.ts';
import { type MqttClient, withSocket } from '../../harness/mqtt-client.ts';
import { mqttsEngine, newDevice } from '../../harness/shared-engine.ts';

async function endsInTime(client: MqttClient): Promise<void> {
  const before = performance.now();
  await client.closed(45_000);
  expect(client.received).toEqual([]);
  expect(performance.now() - before).toBeGreaterThan(28_000);
}

// The tests run at the same time, because all of them wait for 30 seconds.
describe.concurrent('slow CONNECT', () => {
  test('silence ends the connection after 30 seconds', () => withSocket({}, endsInTime));

  test('half a CONNECT and silence', () =>
    withSocket({}, async (client) => {
      await client.send(connectBytes({ level: 5, username: 'someone' }).subarray(0, 9));
      await endsInTime(client);
    }));

  test('a byte each second does not win more time', () =>
    withSocket({}, async (client) => {
      const bytes = connectBytes({ level: 5, clientId: 'a'.repeat(60), username: 'someone' });
      const drip = (async () => {
        for (let n = 0; n < bytes.length && !client.isClosed; n += 1) {
          await client.send(bytes.subarray(n, n + 1));
          await sleep(1_000);
        }
      })();
      await endsInTime(client);
      await drip;
    }));

  test("a CONNECT after a pause of the client's TCP in a storm is answered", () =>
    withSocket({}, async (client) => {
      // TCP repeats a packet after 200 ms, then after twice the pause before: the seventh pause is 12.8 s long.
      await sleep(13_000);
      const { token } = await newDevice();
      expect((await client.connect({ token })).reasonCode).toBe(0);
    }));

  test('TLS: a client that sends nothing after the handshake', () => {
    const { port, ca } = mqttsEngine();
    return withSocket({ port, tls: { ca } }, endsInTime);
  });

  test('TLS: a client that never begins the handshake', () =>
    withSocket({ port: mqttsEngine().port }, (client) => client.closed(9_000)));
});

test('TLS 1.1 is refused', async () => {
  const { port, ca } = mqttsEngine();
  const socket = connect({ port, host: '127.0.0.1', ca, minVersion: 'TLSv1', maxVersion: 'TLSv1.1' });
  await new Promise<void>((resolve, reject) => {
    socket.on('secureConnect', () => reject(new Error('let in')));
    socket.on('error', () => resolve());
  });
});
