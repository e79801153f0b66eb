/** Reconnect storms: while there is room, no connection is refused or closed before its CONNACK. */
import { readFileSync } from 'node:fs';
import type { Socket } from 'node:net';
import { join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { openPostgres, type Postgres } from '../../src/postgres/client.ts';
import { eventually } from '../harness/api.ts';
import { type Engine, startEngine } from '../harness/engine.ts';
import { connectMqtt, type MqttClient } from '../harness/mqtt-client.ts';
import { silentLog as log } from '../harness/silent-log.ts';

const devices = 600;

let engine: Engine;
let tokens: string[];

beforeAll(async () => {
  engine = await startEngine({ workers: 1 });
  const made = Array.from({ length: devices }, (_, n) => ({ name: `storm-${n}`, accessToken: `storm-token-${n}` }));
  tokens = (await engine.api.createDevices(made)).map(({ token }) => token);
});

afterAll(() => engine.destroy());

const connectAll = () => Promise.all(tokens.map((token) => connectMqtt({ port: engine.mqttPort, token, level: 4 })));

/** The counts of a metric by one label, without zeros. */
async function countsBy(name: string, label: string): Promise<Record<string, number>> {
  const lines = (await engine.api.metrics()).matchAll(
    new RegExp(`^${name}\\{[^}]*${label}="(\\w+)"[^}]*\\} (\\d+)`, 'gm'),
  );
  const counts: Record<string, number> = {};
  for (const [, value, count] of lines) if (Number(count) > 0) counts[value!] = (counts[value!] ?? 0) + Number(count);
  return counts;
}

function reset(clients: MqttClient[]): void {
  for (const client of clients) (client.stream as Socket).resetAndDestroy();
}

test('a fleet that lost its connections at one moment is signed in again, each device once', async () => {
  const clients = await connectAll();
  reset(clients);
  const again = await connectAll();
  expect(await countsBy('mqtt_connects_total', 'result')).toEqual({ accepted: 2 * devices });
  await eventually(async () => /^mqtt_connections 600$/m.test(await engine.api.metrics()));
  const {
    connection_lost: lost = 0,
    taken_over: takenOver = 0,
    ...others
  } = await countsBy('mqtt_disconnects_total', 'reason');
  expect([lost + takenOver, others]).toEqual([devices, {}]);
  reset(again);
  await eventually(async () => /^mqtt_connections 0$/m.test(await engine.api.metrics()));
});

test('sign-ins that wait for the lookups of others get their own, however long they have waited', async () => {
  const { url } = JSON.parse(readFileSync(join(engine.dataDir, 'run', 'postgres.json'), 'utf8')) as { url: string };
  // The file of known devices reads the same table until it has all of them.
  await engine.knowsDevices();
  const before = await countsBy('mqtt_connects_total', 'result');
  const unansweredBefore = engine.events('logins_unanswered').length;
  // Each lookup takes less than the time that it has, and all together take longer.
  const lockedMs = 3_000;
  const hold = (other: Postgres, locked = () => {}): Promise<void> =>
    other.transaction(async ({ query }) => {
      await query('lock table device_credentials in access exclusive mode');
      locked();
      await sleep(lockedMs);
    });
  const [one, two] = [0, 1].map(() => openPostgres({ url, poolMax: 1, log })) as [Postgres, Postgres];
  let first: Promise<void> | undefined;
  await new Promise<void>((locked) => {
    first = hold(one, locked);
  });
  const connecting = connectAll();
  // The first lookup waits for the lock already. So it comes before the second lock, and the next lookup after that.
  const waiting = `select 1 from pg_stat_activity where wait_event_type = 'Lock' and query like '%device_credentials%'`;
  await eventually(async () => (await two.query(waiting)).length > 0);
  const second = hold(two);
  const clients = await connecting;
  await Promise.all([first, second]);
  for (const other of [one, two]) await other.close();
  const after = await countsBy('mqtt_connects_total', 'result');
  // A lookup that fails is answered from what the worker remembers.
  expect(engine.events('logins_unanswered').slice(unansweredBefore)).toEqual([]);
  expect(after).toEqual({ ...before, accepted: before['accepted']! + devices });
  reset(clients);
});
