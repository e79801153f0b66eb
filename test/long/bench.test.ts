/**
 * Short runs of benchmarks whose full runs take minutes: every phase runs once over little data, and must store, read
 * and delete exactly what it reports. Rates are not checked.
 */
import { execFile, execFileSync, spawn } from 'node:child_process';
import { once } from 'node:events';
import { existsSync, mkdtempSync, readdirSync, readFileSync, readlinkSync, rmSync } from 'node:fs';
import { createServer, type IncomingMessage, type Server, type ServerResponse } from 'node:http';
import type { AddressInfo } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import { promisify } from 'node:util';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { loadsOf } from '../../bench/result/loads.ts';
import { eventually } from '../harness/api.ts';
import { type Engine, startEngine } from '../harness/engine.ts';

const timeoutMs = 240_000;

beforeAll(() => {
  execFileSync('npx', ['tsc', '-p', 'tsconfig.bench.json'], { stdio: 'inherit' });
});

/** Runs a scenario to its end; returns what it printed, without the files of its result. */
async function bench(scenario: string, settings: Record<string, number>): Promise<string> {
  const overrides = Object.entries(settings).map(([name, value]) => `${scenario}.${name}=${value}`);
  return await run(scenario, ...overrides);
}

/** A rate that a busy machine cannot hold ends the command with 1, although the stored records are right. */
async function run(...words: string[]): Promise<string> {
  const args = ['dist-bench/bench/main.js', ...words];
  const ended = promisify(execFile)(process.execPath, args, { timeout: timeoutMs });
  const { stdout } = await ended.catch((error: { stdout: string }) => error);
  takeResult(stdout);
  return stdout;
}

/** Removes the files of the result that a run has named, and returns the result. */
function takeResult(printed: string): { path: string; result: Record<string, unknown> } {
  const [, path = ''] = /written to (.+)$/m.exec(printed) ?? [];
  expect(path, printed).not.toBe('');
  const page = path.replace(/json$/, 'html');
  expect(existsSync(page)).toBe(true);
  const { result } = JSON.parse(readFileSync(path, 'utf8')) as { result: Record<string, unknown> };
  rmSync(path);
  rmSync(page);
  return { path, result };
}

test('a small fleet and a smaller one are measured in turn, and every record is stored once', async () => {
  const devices = { devices: 100, many: 0, most: 2_000, gateways: 4 };
  const times = { rounds: 1, warmupSeconds: 0, seconds: 1, firstSeconds: 3, everySeconds: 10, steadySeconds: 2 };
  const output = await bench('fleet', { ...devices, ...times, sockets: 32, settleSeconds: 0, keep: 0, targets: 0 });
  expect(output).toContain('every acknowledged record, once; nothing was refused');
});

test('points through gateways are stored, read, reported and deleted exactly, and are there after a restart', async () => {
  const size = { points: 200_000, turns: 20, gateways: 4, messageDevices: 50 };
  const output = await bench('billion', { ...size, samples: 20, deletes: 2, settleSeconds: 0, targets: 0 });
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
    expect(output).toMatch(
      new RegExp(`^${name} +[\\d ]+ [\\d.]+ +[\\d.]+ +[\\d.]+ to [\\d.]+ +[\\d.]+ +[\\d.]+ +-$`, 'm'),
    );
  expect(output).toMatch(/^half of peak, 5 reads\/s .+ - +- +[\d.]+$/m);
});

const times = ['--rate', '50', '--warmup', '500ms', '--duration', '2s'];
const brief = ['--seconds', '1', '--warmup', '0', '--latencySeconds', '1', '--rate', '50', '--settleSeconds', '0'];

let engine: Engine | undefined;

afterAll(() => engine?.destroy());

async function runningEngine(): Promise<Engine> {
  engine ??= await startEngine({ workers: 1 });
  return engine;
}

test('a server that runs already is measured over each protocol, read back, and left as it was', async () => {
  const { port, mqttPort, api } = await runningEngine();
  const { adminEmail, adminPassword } = api.address;
  const user = ['--user', adminEmail, '--password', adminPassword];
  const devices = async () => {
    const answer = await api.send('GET', '/api/tenant/devices?pageSize=1&page=0');
    return ((await answer.json()) as { totalElements: number }).totalElements;
  };
  const before = await devices();
  const http = await run('http', '--target', `http://localhost:${port}`, ...user, '--devices', '10', ...times);
  const broker = ['--target', `mqtt://localhost:${mqttPort}`, '--rest', `http://localhost:${port}`, ...user];
  const mqtt = await run('mqtt', ...broker, '--devices', '10', '--protocol', '5', ...times);
  const unacknowledged = await run('mqtt', ...broker, '--devices', '10', '--qos', '0', ...times);
  const gateway = await run('gateway', ...broker, '--devices', '2', '--children', '10', ...times);
  for (const output of [http, mqtt, unacknowledged, gateway]) {
    expect(output).toMatch(/verified: the server shows all [\d ]+ acknowledged records/);
    expect(output).not.toContain(adminPassword);
  }
  expect(gateway).toContain('removed 22 devices');
  expect(await devices()).toBe(before);
});

test('any server of the same protocol is measured, and what is refused is a result', async () => {
  const server = await standIn();
  const { port } = server.address() as AddressInfo;
  const target = ['http', '--target', `http://localhost:${port}`, ...times];
  try {
    const good = await run(...target, '--token', 'first,second');
    expect(good).toContain('not verified: reading back needs --user');
    const failed = await run(...target, '--token', 'first,unknown');
    expect(failed).toContain('refused with 401');
  } finally {
    server.close();
    server.closeAllConnections();
  }
});

const signIn = ['--user', 'me@x.org', '--password', 'secret'];

test('another platform is measured and read back, also after messages that it refused', async () => {
  let messages = 0;
  const platform = await OtherPlatform.listen({ isRefused: () => messages++ < 40 });
  try {
    const target = ['http', '--target', platform.url, ...signIn, '--devices', '1', '--repeat', '2'];
    const output = await run(...target, ...times);
    expect(output).toContain('refused with 429');
    expect(output).toMatch(/^verified: the server shows all [\d ]+ acknowledged records$/m);
    expect(output).toContain('removed 1 devices');
    expect(platform.devices.size).toBe(0);
  } finally {
    platform.close();
  }
});

const few = ['--blocks', '0', '--brokers', '0', 'http.devices=50', 'mqtt.connections=50'];

test.each([
  // The first device is created long before the others, whose calls are in flight at the interrupt.
  ['http', ['--devices', '20'], (n: number) => 100 * n, (platform: OtherPlatform) => platform.devices.size > 0],
  ['peers', few, () => 0, (platform: OtherPlatform) => platform.messages > 100],
] as const)('an interrupt of %s %j leaves no device on another platform', async (scenario, flags, createMs, isDue) => {
  const platform = await OtherPlatform.listen({ createMs });
  const address = scenario === 'peers' ? ['--peer', `other=${platform.url}`, ...brief] : ['--target', platform.url];
  const words = ['dist-bench/bench/main.js', scenario, ...flags, ...address, ...signIn];
  const child = spawn(process.execPath, words, { stdio: 'ignore' });
  try {
    await eventually(async () => isDue(platform), timeoutMs, 5);
    child.kill('SIGINT');
    const [code] = (await once(child, 'exit')) as [number];
    expect(code).toBe(130);
    expect(platform.devices.size).toBe(0);
  } finally {
    child.kill('SIGKILL');
    platform.close();
  }
});

test('an interrupt while devices are created removes those that exist', async () => {
  const { port, api } = await runningEngine();
  const { adminEmail, adminPassword } = api.address;
  const names = async () => {
    const answer = await api.send('GET', '/api/tenant/devices?pageSize=1&page=0&textSearch=bench-');
    return ((await answer.json()) as { totalElements: number }).totalElements;
  };
  const words = ['http', '--target', `http://localhost:${port}`, '--user', adminEmail, '--devices', '20000'];
  const child = spawn(process.execPath, ['dist-bench/bench/main.js', ...words], {
    env: { ...process.env, BENCH_PASSWORD: adminPassword },
    stdio: 'ignore',
  });
  try {
    await eventually(async () => (await names()) > 0, 60_000, 20);
    child.kill('SIGINT');
    const [code] = (await once(child, 'exit')) as [number];
    expect(code).toBe(130);
    expect(await names()).toBe(0);
  } finally {
    child.kill('SIGKILL');
  }
});

test('a server that ends while it is measured is a result: what broke, and what can no longer be proved', async () => {
  const server = await startEngine({ workers: 1 });
  const { port, mqttPort, api } = server;
  const { adminEmail, adminPassword } = api.address;
  const user = ['--user', adminEmail, '--password', adminPassword, '--devices', '4'];
  // On a busy machine one load begins long before the other, and each removes its devices at its end.
  const lasting = ['--rate', '50', '--warmup', '0', '--duration', '30s'];
  const http = run('http', '--target', `http://localhost:${port}`, ...user, ...lasting);
  const broker = ['--target', `mqtt://localhost:${mqttPort}`, '--rest', `http://localhost:${port}`];
  const mqtt = run('mqtt', ...broker, ...user, ...lasting);
  try {
    const senders = async () => Number((await server.clickhouse('SELECT uniq(device) FROM telemetry'))[0]![0]);
    await eventually(async () => (await senders()) === 8, 60_000, 50);
    await server.killAll();
    for (const output of [await http, await mqtt]) {
      expect(output).toMatch(/^refused with .*ECONNREFUSED at the connect/m);
      expect(output).toMatch(/^NOT verified: the \d+ acknowledged records cannot be read \(.*ECONNREFUSED/m);
      expect(output).toMatch(/^NOT removed: the devices whose names begin with bench-[0-9a-f]{6}- /m);
      expect(output).not.toContain('    at ');
    }
  } finally {
    await server.destroyAtOnce();
  }
});

test('an engine that ends under a benchmark ends it with a sentence, and a load that went on beside it', async () => {
  const mark = mkdtempSync(join(tmpdir(), 'millrace-bench-'));
  const words = ['http.devices=8', 'http.sockets=8', 'http.seconds=1', 'http.warmupSeconds=0', 'visibility.samples=20'];
  const child = spawn(process.execPath, ['dist-bench/bench/main.js', 'visibility', ...words], {
    env: { ...process.env, TMPDIR: mark },
    stdio: ['ignore', 'pipe', 'inherit'],
  });
  let printed = '';
  child.stdout.on('data', (bytes: Buffer) => {
    printed += bytes.toString();
  });
  try {
    // The second load of the scenario goes on beside the reads.
    const loads = () => marked(mark).filter((command) => command.includes('http-process.js')).length;
    await eventually(async () => loads() === 1, 120_000, 20);
    await eventually(async () => loads() === 0, 60_000, 20);
    await eventually(async () => loads() === 1, 60_000, 20);
    for (const pid of pidsOf(mark, 'dist/main.js')) process.kill(pid, 'SIGKILL');
    const [code] = (await once(child, 'close')) as [number];
    expect(code).toBe(1);
    expect(printed).toMatch(/^ended with an error: fetch failed: .*ECONNREFUSED/m);
    expect(printed).toContain('An engine had ended before.');
    expect(printed).not.toContain('    at ');
    expect(marked(mark)).toEqual([]);
  } finally {
    child.kill('SIGKILL');
    rmSync(mark, { recursive: true, force: true });
  }
});

test('what an interrupted load has measured is a result, with the seconds until the interrupt', async () => {
  let answered = 0;
  const server = await standIn(() => {
    answered += 1;
  });
  const { port } = server.address() as AddressInfo;
  const flags = ['--token', 'first,second', '--rate', '50', '--warmup', '0', '--duration', '60s'];
  const child = spawn(
    process.execPath,
    ['dist-bench/bench/main.js', 'http', '--target', `http://localhost:${port}`, ...flags],
    {
      stdio: ['ignore', 'pipe', 'pipe'],
      // A terminal sends its signal to all processes of the group.
      detached: true,
    },
  );
  let printed = '';
  for (const stream of [child.stdout, child.stderr])
    stream.on('data', (bytes: Buffer) => {
      printed += bytes.toString();
    });
  try {
    await eventually(async () => answered > 150, 60_000, 20);
    process.kill(-child.pid!, 'SIGINT');
    const [code] = (await once(child, 'close')) as [number];
    expect(code).toBe(130);
    expect(printed).not.toContain('    at ');
    const { path, result } = takeResult(printed);
    expect(path).toContain('http-target-');
    expect(result['isInterrupted']).toBe(true);
    const [load] = loadsOf(result);
    expect(load!.path).toBe('load 1, unfinished');
    expect(load!.load.seconds.length).toBeGreaterThanOrEqual(2);
    expect(load!.load.requestsPerSecond).toBeGreaterThan(20);
  } finally {
    child.kill('SIGKILL');
    server.close();
    server.closeAllConnections();
  }
});

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
    const child = spawn(process.execPath, ['dist-bench/bench/main.js', scenario, ...flags], {
      env: { ...process.env, TMPDIR: mark },
      stdio: ['ignore', 'pipe', 'ignore'],
    });
    let output = '';
    child.stdout.on('data', (chunk: Buffer) => {
      output += chunk.toString('utf8');
    });
    try {
      const names = () => [...marked(mark), ...readdirSync(mark)];
      await eventually(async () => names().some((name) => name.includes(started)), 60_000, 20);
      child.kill(signal);
      const [code] = (await once(child, 'close')) as [number];
      expect(code).toBe(130);
      expect(output).toContain(`ended by ${signal}, before its result.`);
      await eventually(async () => marked(mark).length === 0, 10_000);
      expect(readdirSync(mark)).toEqual([]);
    } finally {
      child.kill('SIGKILL');
      rmSync(mark, { recursive: true, force: true });
    }
  },
);

/** Returns the commands of all processes that have this word in their command, environment or directory. */
function marked(word: string): string[] {
  return [...processesOf(word).values()];
}

function pidsOf(word: string, command: string): number[] {
  return [...processesOf(word)].flatMap(([pid, each]) => (each.includes(command) ? [pid] : []));
}

function processesOf(word: string): Map<number, string> {
  const found = readdirSync('/proc').flatMap((pid): [number, string][] => {
    if (!/^\d+$/.test(pid)) return [];
    try {
      const [command, environment] = ['cmdline', 'environ'].map((file) => readFileSync(`/proc/${pid}/${file}`, 'utf8'));
      // Redis writes its title over its environment.
      const places = [command!, environment!, readlinkSync(`/proc/${pid}/cwd`)];
      return places.some((place) => place.includes(word)) ? [[Number(pid), command!.replaceAll('\0', ' ')]] : [];
    } catch {
      // The process has ended.
      return [];
    }
  });
  return new Map(found);
}

/** The device protocol over HTTP in its simplest form: known tokens get 200. */
async function standIn(onRequest = () => {}): Promise<Server> {
  const server = createServer((request, response) => {
    onRequest();
    const isKnown = /^\/api\/v1\/(first|second)\/telemetry$/.test(request.url ?? '');
    request.resume().once('end', () => response.writeHead(isKnown ? 200 : 401, { 'Content-Length': 0 }).end());
  });
  server.listen(0, '127.0.0.1');
  await once(server, 'listening');
  return server;
}

/**
 * Another server with ThingsBoard's device protocol and REST interface: it creates devices one at a time, and answers a
 * message with a body, in a later segment than the head.
 */
class OtherPlatform {
  readonly devices = new Map<string, { name: string; times: Set<number> }>();
  messages = 0;
  url = '';
  readonly #server = createServer((request, response) => {
    const pieces: Buffer[] = [];
    request.on('data', (piece: Buffer) => pieces.push(piece));
    request.once('end', () => void this.#answer(request, Buffer.concat(pieces).toString(), response));
  });
  readonly #isRefused: () => boolean;
  readonly #createMs: (n: number) => number;
  #created = 0;

  private constructor(isRefused: () => boolean, createMs: (n: number) => number) {
    this.#isRefused = isRefused;
    this.#createMs = createMs;
  }

  /** `createMs`: the time that the creation of the n-th device takes. */
  static async listen({ isRefused = () => false, createMs = (_: number) => 0 }): Promise<OtherPlatform> {
    const platform = new OtherPlatform(isRefused, createMs);
    platform.#server.listen(0, '127.0.0.1');
    await once(platform.#server, 'listening');
    platform.url = `http://localhost:${(platform.#server.address() as AddressInfo).port}`;
    return platform;
  }

  close(): void {
    this.#server.close();
    this.#server.closeAllConnections();
  }

  async #answer({ method, url = '', headers }: IncomingMessage, body: string, response: ServerResponse): Promise<void> {
    const { pathname, searchParams } = new URL(url, this.url);
    const [, kind, id = ''] = /^\/api\/(v1|device|plugins\/telemetry\/DEVICE)\/([^/]+)/.exec(pathname) ?? [];
    const json = (answer: object, status = 200) => {
      const text = JSON.stringify(answer);
      response.writeHead(status, { 'Content-Length': text.length }).flushHeaders();
      setImmediate(() => response.end(text));
    };
    if (pathname === '/api/auth/login') json({ token: 'jwt' });
    else if (kind === 'v1') json(...this.#take(id, body, headers.host));
    else if (headers['x-authorization'] !== 'Bearer jwt') json({}, 401);
    else if (pathname === '/api/device') json(await this.#create(searchParams.get('accessToken')!, body));
    else if (pathname === '/api/tenant/devices') json(this.#page(searchParams));
    else if (method === 'DELETE') json({}, this.devices.delete(id) ? 200 : 404);
    else if (kind?.startsWith('plugins')) json({ temperature: [{ value: String(this.devices.get(id)!.times.size) }] });
    else json({}, 404);
  }

  /** A balancer finds the server by its name. */
  #take(token: string, body: string, host: string | undefined): [answer: object, status: number] {
    this.messages += 1;
    const device = this.devices.get(token);
    if (this.#isRefused()) return [{ message: 'too many' }, 429];
    if (device === undefined || host !== new URL(this.url).host) return [{}, 401];
    device.times.add((JSON.parse(body) as { ts: number }).ts);
    return [{ accepted: true }, 200];
  }

  async #create(token: string, body: string): Promise<object> {
    await sleep(this.#createMs(this.#created++));
    this.devices.set(token, { name: (JSON.parse(body) as { name: string }).name, times: new Set() });
    return { id: { id: token } };
  }

  #page(query: URLSearchParams): object {
    const [size, page, search] = [Number(query.get('pageSize')), Number(query.get('page')), query.get('textSearch')!];
    const found = [...this.devices].filter(([, { name }]) => name.startsWith(search));
    const data = found.slice(page * size, (page + 1) * size).map(([id, { name }]) => ({ id: { id }, name }));
    return { data, hasNext: found.length > (page + 1) * size };
  }
}
