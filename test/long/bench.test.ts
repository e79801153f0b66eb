/**
 * Short runs of benchmarks whose full runs take minutes: every phase runs once over little data, and must store, read
 * and delete exactly what it reports. Rates are not checked.
 */
import { mkdtempSync, readdirSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { eventually } from '../harness/api.ts';
import { BenchRun, buildBench, marked, pidsOf, runBench, takeResult } from '../harness/bench-run.ts';
import { type Engine, startEngine } from '../harness/engine.ts';

beforeAll(() => buildBench());

/** Runs a scenario to its end; returns what it printed, without the files of its result. */
async function bench(scenario: string, settings: Record<string, number>): Promise<string> {
  const overrides = Object.entries(settings).map(([name, value]) => `${scenario}.${name}=${value}`);
  return await run(scenario, ...overrides);
}

/** A rate that a busy machine cannot hold ends the command with 1, although the stored records are right. */
async function run(...words: string[]): Promise<string> {
  const { printed } = await runBench(words);
  takeResult(printed);
  return printed;
}

test('a small fleet and a smaller one are measured in turn, and every record is stored once', async () => {
  const devices = { devices: 100, many: 0, most: 2_000, gateways: 4 };
  const times = { rounds: 1, warmupSeconds: 0, seconds: 1, firstSeconds: 3, everySeconds: 10, steadySeconds: 2 };
  const output = await bench('fleet', { ...devices, ...times, sockets: 32, settleSeconds: 0, keep: 0, targets: 0 });
  expect(output).toContain('every acknowledged record, once; nothing was refused');
});

test('points through gateways are stored, read, reported and deleted exactly, and are there after a restart', async () => {
  const size = { points: 200_000, turns: 20, gateways: 4, messageDevices: 50 };
  const output = await bench('billion', {
    ...size,
    samples: 20,
    deletes: 2,
    settleSeconds: 0,
    mergeSeconds: 5,
    targets: 0,
  });
  expect(output).toContain('every point of every device, once');
  expect(output).toContain('every other point');
});

test('idle connections all come back after they were cut, and none is refused', async () => {
  const size = { devices: 600, stormDevices: 300, workers: 2, processes: 2, othersConnections: 8, othersRate: 100 };
  const output = await bench('connections', { ...size, stormRounds: 1, settleSeconds: 1, quietSeconds: 1, targets: 0 });
  expect(output).toContain('connections that were refused or ended by themselves: 0');
});

test('a day of a mixed fleet loses nothing beside cut connections, a slow store and a killed worker', async () => {
  const rates = { httpRate: 30, mqttRate: 30, gatewayRate: 4, attributeRate: 5, commandRate: 2, readRate: 5 };
  const size = { devices: 40, gateways: 2, children: 10, commandDevices: 4, reportClients: 1 };
  const output = await bench('day', { ...size, ...rates, phaseSeconds: 2, slowSeconds: 3 });
  expect(output).toContain('stored: every acknowledged record, once');
  for (const event of ['reports of 1 clients', 'slow ClickHouse', 'a worker killed']) expect(output).toContain(event);
});

test('two hosts are measured beside one, and the deliveries of many simulated workers are counted', async () => {
  const size = { hosts: 2, devices: 6, rate: 20, seconds: 1, idleSeconds: 1, events: 2, commands: 4, commandRate: 2 };
  const output = await bench('hosts', { ...size, statements: 20 });
  expect(output).toMatch(/^2 +[\d. ]+\([\d.]+\)/m);
  expect(output).toMatch(/^ +64 +\d+/m);
  expect(output).toContain('DATABASE_BEHIND_POOLER=true');
});

test('the tails of acknowledgements are measured with ClickHouse, without it, and beside reads', async () => {
  const times = { rounds: 1, warmupSeconds: 0, seconds: 1 };
  const size = { rate: 50, points: 20_000, reportClients: 2, readConnections: 2, readRate: 5 };
  const output = await bench('tails', { ...times, ...size, targets: 0 });
  expect(output).toContain('stored and verified in ClickHouse: every acknowledged record, once');
  // With ClickHouse and without: p99, the only round, p99, ratio.
  for (const name of ['low rate', 'a quarter of peak', 'half of peak'])
    expect(output).toMatch(new RegExp(`^${name} +[\\d ]+ [\\d.]+ +[\\d.]+ +[\\d.]+ +[\\d.]+ +[\\d.]+ +-$`, 'm'));
  expect(output).toMatch(/^half of peak, 5 reads\/s .+ - +- +[\d.]+$/m);
});

const brief = ['--seconds', '1', '--warmup', '0', '--latencySeconds', '1', '--rate', '50', '--settleSeconds', '0'];

let engine: Engine | undefined;

afterAll(() => engine?.destroy());

async function runningEngine(): Promise<Engine> {
  engine ??= await startEngine({ workers: 1 });
  return engine;
}

test('an engine that ends under a benchmark ends it with a sentence, and a load that went on beside it', async () => {
  const mark = mkdtempSync(join(tmpdir(), 'millrace-bench-'));
  const words = ['http.devices=8', 'http.sockets=8', 'http.seconds=1', 'http.warmupSeconds=0', 'visibility.samples=20'];
  const bench = new BenchRun(['visibility', ...words], { env: { TMPDIR: mark } });
  try {
    // The second load of the scenario goes on beside the reads.
    const loads = () => {
      expect(bench.child.exitCode, bench.printed).toBeNull();
      return pidsOf(mark, 'http-process.js').length;
    };
    await eventually(async () => loads() === 1, 120_000, 20);
    await eventually(async () => loads() === 0, 60_000, 20);
    await eventually(async () => loads() === 1, 60_000, 20);
    for (const pid of pidsOf(mark, 'dist/main.js')) process.kill(pid, 'SIGKILL');
    expect(await bench.code()).toBe(1);
    expect(bench.printed).toMatch(/^ended with an error: fetch failed: .*ECONNREFUSED/m);
    expect(bench.printed).toContain('An engine had ended before.');
    expect(bench.printed).not.toContain('    at ');
    expect(marked(mark)).toEqual([]);
  } finally {
    bench.child.kill('SIGKILL');
    rmSync(mark, { recursive: true, force: true });
  }
});

const few = ['--blocks', '0', '--brokers', '0', 'http.devices=50', 'mqtt.connections=50'];

test('databases and a platform that runs already take the same records; each store has all of them', async () => {
  const { port, api } = await runningEngine();
  const { adminEmail, adminPassword } = api.address;
  const platform = [
    '--peer',
    `thingsboard=http://localhost:${port}`,
    '--user',
    adminEmail,
    '--password',
    adminPassword,
  ];
  const output = await run('peers', ...brief, ...few, ...platform);
  expect(output).toContain('stored and read back: every acknowledged record, once');
  for (const name of ['PostgreSQL', 'Millrace', 'thingsboard'])
    expect(output).toMatch(new RegExp(`^${name}, .+ messages/s$`, 'm'));
  // Databases that are not installed are named with the command that installs them.
  for (const [name, install] of Object.entries({ VictoriaMetrics: 'victoria-metrics', InfluxDB: 'influxdb' }))
    expect(output).toMatch(new RegExp(`^${name}(, | is not installed and left out: apt-get install ${install}$)`, 'm'));
});

test.each([
  ['peers', brief, 'mosquitto', 'SIGINT'],
  ['hosts', [], 'redis-server', 'SIGTERM'],
  // The terminal was closed.
  ['rpc', [], 'dist/main.js', 'SIGHUP'],
  ['lists', [], '--pwfile', 'SIGINT'],
  ['lists', [], 'bin/postgres', 'SIGTERM'],
  ['micro', [], 'journal-bench-', 'SIGINT'],
] as const)(
  '%s %j: an end while %s is there leaves no process and no directory (%s)',
  async (scenario, flags, started, signal) => {
    const mark = mkdtempSync(join(tmpdir(), 'millrace-bench-'));
    const bench = new BenchRun([scenario, ...flags], { env: { TMPDIR: mark } });
    try {
      const names = () => [...marked(mark), ...readdirSync(mark)];
      await eventually(async () => names().some((name) => name.includes(started)), 60_000, 20);
      bench.signal(signal);
      expect(await bench.code()).toBe(130);
      expect(bench.printed).toContain(`ended by ${signal}, before its result.`);
      await eventually(async () => marked(mark).length === 0, 10_000);
      expect(readdirSync(mark)).toEqual([]);
    } finally {
      bench.child.kill('SIGKILL');
      rmSync(mark, { recursive: true, force: true });
    }
  },
);
