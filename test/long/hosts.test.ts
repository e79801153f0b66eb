/**
 * Three engines as hosts of one installation: each knows the others, a killed host becomes silent and has the same id
 * when it runs again, a stopped one is removed at once, and a host with another value of a setting that must be equal
 * is refused.
 */
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { copyFileSync, rmSync } from 'node:fs';
import { join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { limits } from '../../src/base/limits.ts';
import { openPostgres } from '../../src/postgres/client.ts';
import { firing } from '../harness/alerts.ts';
import { eventually } from '../harness/api.ts';
import { type Engine, prepareEngine, startEngine } from '../harness/engine.ts';
import { connectMqtt, type MqttClient } from '../harness/mqtt-client.ts';
import { silentLog } from '../harness/silent-log.ts';
import { hostSettings, type Stores, startStores } from '../harness/stores.ts';

let stores: Stores;
let one: Engine;
let two: Engine;
let three: Engine;

beforeAll(async () => {
  stores = await startStores();
  const env = (name: string) => ({ ...hostSettings(stores), INSTANCE_NAME: name, INSTANCE_ZONE: `zone-${name}` });
  one = await startEngine({ workers: 1, env: env('one') });
  [two, three] = (await Promise.all(['two', 'three'].map((name) => prepareEngine({ workers: 1, env: env(name) })))) as [
    Engine,
    Engine,
  ];
  await two.start();
});

afterAll(async () => {
  await Promise.all([one, two, three].map((engine) => engine?.destroy()));
  await stores?.stopAll();
});

async function command(name: string, words: string[] = [], env = {}): Promise<{ code: unknown; output: string }> {
  const child = spawn(process.execPath, [`dist/${name}.js`, ...words], { env: { ...one.environment, ...env } });
  let output = '';
  for (const stream of [child.stdout, child.stderr]) stream.on('data', (chunk) => (output += chunk));
  const [code] = await once(child, 'close');
  return { code, output };
}

async function sql(statement: string): Promise<void> {
  const postgres = openPostgres({ url: stores.postgres.url, poolMax: 1, log: silentLog });
  await postgres.query(statement).finally(() => postgres.close());
}

/** Returns the lines of `npm run hosts` below the table head, each as a list of its cells. */
async function hosts(...words: string[]): Promise<string[][]> {
  const { code, output } = await command('hosts', words);
  expect(code, output).toBe(0);
  return output
    .trim()
    .split('\n')
    .slice(1)
    .map((line) => line.split(/\s{2,}/));
}

async function states(): Promise<Record<string, string>> {
  return Object.fromEntries((await hosts()).slice(0, -1).map((cells) => [cells[0], cells.at(-1)!]));
}

async function count(state: string): Promise<number | undefined> {
  return await one.metric(`hosts{state="${state}"}`);
}

/** Returns the only line of a start that was refused. */
async function refusal(engine: Engine, env: Record<string, string>): Promise<string> {
  engine.spawn(env);
  const { code } = await engine.exit(60_000);
  expect(code).not.toBe(0);
  const lines = engine.output.split('\n').filter((line) => line !== '' && !line.startsWith('{'));
  expect(lines, engine.output).toHaveLength(1);
  return lines[0]!;
}

test('each host is a row, with where it is and what it runs', async () => {
  const [first, second, last] = await hosts();
  expect(first?.slice(0, 5)).toEqual(['one', `127.0.0.1:${one.port}`, 'zone-one', '0.1.0', '1']);
  expect(first?.at(-1)).toBe('live');
  expect(second?.[0]).toBe('two');
  expect(last).toEqual(['2 live, 0 silent']);
  await eventually(async () => (await count('live')) === 2, 10_000);
  expect(await count('silent')).toBe(0);
  expect(firing(await one.api.metricsPage())).not.toContain('MillraceHostSilent');
});

test('a host with more than its share of the MQTT connections hands over the surplus, at a rate', async () => {
  const [clients, perSecond] = [12, 1];
  const devices = await Promise.all(Array.from({ length: clients }, () => one.api.newDevice()));
  const connected: MqttClient[] = [];
  const levelOf = (n: number) => (n % 2 === 0 ? 5 : 4);
  const connect = (n: number, { mqttPort }: Engine) =>
    connectMqtt({ port: mqttPort, token: devices[n]!.token, level: levelOf(n) });
  try {
    for (let n = 0; n < clients; n += 1) connected.push(await connect(n, one));
    await eventually(async () => (await hosts())[0]?.[5] === String(clients));
    const begun = performance.now();
    const rows = await hosts('rebalance', String(perSecond));
    expect(rows.slice(0, 2)).toEqual([
      ['one', '12', '6', '6'],
      ['two', '0', '6', '0'],
    ]);
    // A second command at the same time hands over no further connections.
    await eventually(() => connected.some(({ isClosed }) => isClosed));
    await hosts('rebalance', '1000');
    await eventually(() => connected.filter(({ isClosed }) => isClosed).length >= 6, 20_000);
    expect(performance.now() - begun).toBeGreaterThan((1000 * 5) / perSecond);
    await eventually(async () => (await hosts())[0]?.[5] === '6');
    const left = connected.flatMap((client, n) => (client.isClosed ? [n] : []));
    expect(left).toEqual([0, 1, 2, 3, 4, 5]);
    for (const n of left) {
      // MQTT 5: 0x9C, "use another server"; earlier versions: no packet.
      await connected[n]!.closedFor(0x9c);
      connected[n] = await connect(n, two);
    }
    await eventually(async () => (await hosts())[1]?.[5] === '6');
    expect((await hosts('rebalance')).at(-1)).toEqual(['No host has more than its share.']);
    // Both hosts continue to accept connections.
    expect(await connected[11]!.publish('v1/devices/me/telemetry', '{"a":1}')).toMatchObject({ cmd: 'puback' });
    connected.push(await connect(0, one));
  } finally {
    for (const client of connected) client.cut();
  }
});

test.each([['rebalance', '0'], ['rebalance', '1.5'], ['rebalance', '1', '2'], ['balance']])(
  '%s %s is refused',
  async (...words) => {
    await expect(hosts(...words)).rejects.toThrow();
  },
);

test('a host with another value of such a setting does not start: one line names it, both values and the host', async () => {
  expect(await refusal(three, { DEFAULT_INACTIVITY_TIMEOUT: '32' })).toContain(
    `DEFAULT_INACTIVITY_TIMEOUT is 32 here and 600 on the host one (127.0.0.1:${one.port}), which runs`,
  );
  expect(await refusal(three, { RATE_LIMITS_TENANT_MESSAGES: '5:1' })).toContain(
    'RATE_LIMITS_TENANT_MESSAGES is 5:1 here and empty on the host one',
  );
  const doctor = await command('doctor', [], { DEFAULT_INACTIVITY_TIMEOUT: '32' });
  expect(doctor.code).toBe(1);
  expect(doctor.output).toMatch(/^fault +hosts +DEFAULT_INACTIVITY_TIMEOUT is 32 here and 600 on the host two \(/m);
  expect((await command('doctor')).output).toMatch(
    /^ok +hosts +1 other host of this installation, with equal settings/m,
  );
  expect(await states()).toEqual({ one: 'live', two: 'live' });
  await three.start();
  expect(await states()).toEqual({ one: 'live', two: 'live', three: 'live' });
});

test('a host whose directory is a copy of that of a live host does not start, or is not ready; that host goes on', async () => {
  const id = join(three.dataDir, 'host.id');
  await three.stop();
  copyFileSync(join(one.dataDir, 'host.id'), id);
  const sentence = `The host one (127.0.0.1:${one.port}), which runs, has the id of this host`;
  expect(await refusal(three, {})).toContain(sentence);
  // With this name and address it could be the former start of the same host.
  three.spawn({ INSTANCE_NAME: 'one', INSTANCE_ADDRESS: `127.0.0.1:${one.port}` });
  await eventually(async () => (await three.status()).status === 'copy', 60_000);
  expect((await three.status()).reasons?.[0]).toContain(sentence);
  expect(three.events('host_directory_copied')).toHaveLength(1);
  for (const until = Date.now() + 5_000; Date.now() < until; await sleep(250)) {
    expect((await one.status()).code).toBe(200);
    expect((await three.status()).status).toBe('copy');
  }
  // The copy does not take the place of the host that is restarted.
  await one.stop();
  for (const until = Date.now() + 2 * limits.hostHeartbeatMs; Date.now() < until; await sleep(250)) {
    expect((await three.status()).status).toBe('copy');
  }
  await one.start();
  for (const until = Date.now() + 2 * limits.hostHeartbeatMs; Date.now() < until; await sleep(250)) {
    expect((await one.status()).code).toBe(200);
    expect((await three.status()).status).toBe('copy');
  }
  await three.stop();
  rmSync(id);
  await three.start();
  expect(await states()).toEqual({ one: 'live', two: 'live', three: 'live' });
});

test('a stopped host is gone at once; what it could not ship is named until it runs again', async () => {
  const device = await three.api.newDevice();
  await stores.clickhouse.kill();
  await eventually(async () => (await three.api.postTelemetry(device.token, '{"waits":1}')) === 200, 10_000);
  const postedMs = Date.now();
  await three.stop();
  expect(three.output.trim().split('\n').at(-1)).toMatch(
    /everything acknowledged is durable\. ClickHouse does not have all of it: [\d.]+ \w+ wait in the journals of DATA_DIR\./,
  );
  expect(await states()).toEqual({ one: 'live', two: 'live' });
  await stores.clickhouse.start();
  // The journal counts as one without a report after half a minute.
  await sql("update journals set heard_at = heard_at - interval '1 minute' where host = 'three'");
  const line = (await hosts()).at(-1)!.join(' ');
  const [, last = ''] =
    /^three: 1 journal without a report since \S+Z held rows that ClickHouse lacks, the last of (\S+Z)\. Start /.exec(
      line,
    ) ?? [];
  expect(Math.abs(Date.parse(last) - postedMs), line).toBeLessThan(10_000);
  await three.start();
  await eventually(async () => (await hosts()).at(-1)!.join(' ') === '3 live, 0 silent', 30_000);
  await three.stop();
});

test('a killed host becomes silent, which degrades no other, and comes back as the same row', async () => {
  await two.killAll();
  await eventually(async () => (await states())['two'] === 'silent', 20_000);
  await eventually(async () => (await count('silent')) === 1, 10_000);
  expect(firing(await one.api.metricsPage())).toContain('MillraceHostSilent');
  expect(await one.status()).toMatchObject({ code: 200, status: 'ready', reasons: [] });
  const monitor = await fetch(`http://127.0.0.1:${one.api.address.monitorPort}/readyz`);
  expect(monitor.status).toBe(200);
  expect(await monitor.json()).toMatchObject({ status: 'ready', silentHosts: ['two'] });
  const doctor = (await command('doctor')).output;
  expect(doctor).toMatch(/^warning +hosts +two \(127\.0\.0\.1:\d+\) has sent no heartbeat for \d+ s: start it again /m);
  // The settings of a silent host do not prevent the start of another one.
  await three.start();
  await three.stop();
  await two.start();
  expect(await states()).toEqual({ one: 'live', two: 'live' });
  const [, second] = await hosts();
  expect(second?.[0]).toBe('two');
});

test('without PostgreSQL a host starts; with other settings it is not ready when PostgreSQL is back, and goes on', async () => {
  const device = await one.api.newDevice();
  const post = () =>
    fetch(`${two.api.http}/api/v1/${device.token}/telemetry`, { method: 'POST', body: '{"a":1}' }).then(
      (r) => r.status,
    );
  await eventually(async () => (await post()) === 200, 10_000);
  await two.knowsDevices();
  await two.stop();
  await stores.postgres.kill();
  await two.start({ DEFAULT_INACTIVITY_TIMEOUT: '32' }, 'workers');
  expect(await two.status()).toMatchObject({ code: 200, status: 'degraded' });
  expect(await post()).toBe(200);
  await stores.postgres.start();
  await eventually(async () => (await two.status()).status === 'mismatch', 60_000);
  const { code, reasons = [] } = await two.status();
  expect(code).toBe(503);
  expect(reasons[0]).toContain('DEFAULT_INACTIVITY_TIMEOUT is 32 here and 600 on the host one');
  await eventually(async () => (await one.status()).status === 'ready', 20_000);
  // The host is ready only when no live host has other settings.
  await one.stop();
  await eventually(async () => (await two.status()).status === 'ready', 60_000);
});
