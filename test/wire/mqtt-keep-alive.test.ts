/** Silence beyond one and a half times the keep-alive ends a connection, any packet in time keeps it (mqtt.md case 12). */
import { setTimeout as sleep } from 'node:timers/promises';
import { describe, expect, test } from 'vitest';
import { levelName, levels } from './mqtt-client.ts';
import { telemetry, withDevice } from './mqtt-device.ts';

// They wait for the same seconds, so they wait together.
describe.concurrent('keep-alive', () => {
  for (const level of levels) {
    test(`${levelName[level]}, case 12: silence ends the connection with 0x8D, not sooner than it should`, () =>
      withDevice({ level, keepAlive: 1 }, async (client) => {
        const before = performance.now();
        await client.closedFor(0x8d, 8_000);
        expect(performance.now() - before).toBeGreaterThan(1_400);
      }));

    test(`${levelName[level]}: PINGREQ alone keeps it`, () =>
      withDevice({ level, keepAlive: 1 }, async (client) => {
        for (let n = 0; n < 5; n += 1) {
          await client.quiet();
          await sleep(700);
        }
        await client.quiet();
      }));

    test(`${levelName[level]}: QoS 0 alone keeps it`, () =>
      withDevice({ level, keepAlive: 1 }, async (client) => {
        for (let n = 0; n < 5; n += 1) {
          await client.publishQos0(telemetry, '{"a":1}');
          await sleep(700);
        }
        await client.quiet();
      }));

    test(`${levelName[level]}: half a packet is no sign of life`, () =>
      withDevice({ level, keepAlive: 1 }, async (client) => {
        await client.send(Buffer.from([0x30, 50]));
        await client.closedFor(0x8d, 8_000);
      }));

    test(`${levelName[level]}: 0 switches it off`, () =>
      withDevice({ level, keepAlive: 0 }, async (client) => {
        await sleep(4_000);
        await client.quiet();
      }));
  }
});
