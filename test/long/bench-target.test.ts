/**
 * `npm run bench -- … --target`: a Millrace that runs, and other servers of its protocol, over TCP and TLS. Every run
 * leaves its server as it was, and says what it could not see.
 */
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { mkdtempSync, readdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import type { Server } from 'node:http';
import { createServer as createTcpServer, type Socket } from 'node:net';
import { availableParallelism, tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { loadsOf } from '../../bench/result/loads.ts';
import { eventually } from '../harness/api.ts';
import { BenchRun, buildBench, runBench, takeResult } from '../harness/bench-run.ts';
import { createCertificate, httpsSettings, mqttsSettings } from '../harness/certificate.ts';
import { type Engine, startEngine } from '../harness/engine.ts';
import { closeServer, OtherPlatform, portOf, standIn } from '../harness/other-platform.ts';
import { freePort } from '../harness/ports.ts';

const directory = mkdtempSync(join(tmpdir(), 'millrace-bench-'));
const certificate = createCertificate(directory, 'server');
let engine: Engine;
let [httpsPort, mqttsPort] = [0, 0];

beforeAll(async () => {
  buildBench();
  [httpsPort, mqttsPort] = [await freePort(), await freePort()];
  engine = await startEngine({
    workers: 1,
    env: { ...httpsSettings(httpsPort, certificate), ...mqttsSettings(mqttsPort, certificate) },
  });
});

afterAll(async () => {
  await engine?.destroy();
  rmSync(directory, { recursive: true, force: true });
});

const times = ['--rate', '50', '--warmup', '500ms', '--duration', '2s'];

/** Runs a command to its end, without the files of its result. */
async function run(...words: string[]): Promise<string> {
  const { printed } = await runBench(words);
  takeResult(printed);
  return printed;
}

function userOf({ api }: Engine): string[] {
  return ['--user', api.address.adminEmail, '--password', api.address.adminPassword];
}

/** Devices whose names begin so. */
async function devicesOf({ api }: Engine, name = ''): Promise<number> {
  const answer = await api.send('GET', `/api/tenant/devices?pageSize=1&page=0&textSearch=${name}`);
  return ((await answer.json()) as { totalElements: number }).totalElements;
}

test('a server that runs already is measured over each protocol, read back, and left as it was', async () => {
  const { port, mqttPort, api } = engine;
  const user = userOf(engine);
  const before = await devicesOf(engine);
  const http = await runBench(['http', '--target', `http://localhost:${port}`, ...user, '--devices', '10', ...times]);
  const broker = ['--target', `mqtt://localhost:${mqttPort}`, '--rest', `http://localhost:${port}`, ...user];
  const mqtt = await run('mqtt', ...broker, '--devices', '10', '--protocol', '5', ...times);
  const unacknowledged = await run('mqtt', ...broker, '--devices', '10', '--qos', '0', ...times);
  const gateway = await run('gateway', ...broker, '--devices', '2', '--children', '10', ...times);
  for (const output of [http.printed, mqtt, unacknowledged, gateway]) {
    expect(output).toMatch(/verified: the server shows all [\d ]+ acknowledged records/);
    expect(output).not.toContain(api.address.adminPassword);
  }
  expect(gateway).toContain('removed 22 devices');
  expect(await devicesOf(engine)).toBe(before);

  // The machine is that of the generator, and the server is named apart from it.
  const { file, page } = takeResult(http.printed);
  const address = `http://localhost:${port}`;
  expect(file['server']).toEqual({ address, isThisMachine: true, version: expect.stringMatching(/^Millrace \d/) });
  expect(page).toContain("<th>server's machine</th><td>probably that of the generator");
  expect(page).toContain("<th>generator's machine</th>");
  expect(http.printed).toMatch(
    /^server +http:\/\/localhost:\d+, Millrace .+\n +its machine: probably that of the generator/m,
  );
});

test('over TLS a server is measured when its certificate is trusted, and else named with what to do', async () => {
  const ca = ['--ca', certificate.cert];
  const sized = ['--devices', '5', ...times];
  const https = ['http', '--target', `https://localhost:${httpsPort}`];
  const mqtts = ['--target', `mqtts://localhost:${mqttsPort}`, '--rest', `https://localhost:${httpsPort}`];
  for (const words of [
    [...https, ...userOf(engine), ...ca, ...sized],
    [...https, ...userOf(engine), '--insecure', ...sized],
    ['mqtt', ...mqtts, ...userOf(engine), ...ca, ...sized, '--rate', 'max'],
    ['mqtt', ...mqtts, ...userOf(engine), ...ca, ...sized, '--qos', '0', '--protocol', '5'],
    ['gateway', ...mqtts, ...userOf(engine), '--insecure', '--devices', '2', '--children', '5', ...times],
  ]) {
    const printed = await run(...words);
    expect(printed).toMatch(/^target .+ with TLS/m);
    expect(printed).toMatch(/verified: the server shows all [1-9][\d ]* acknowledged records/);
  }
  const token = ['--token', 'any'];
  const other = createCertificate(directory, 'other').cert;
  for (const [words, sentence] of [
    [[...https, ...token], /^The certificate of localhost:\d+ is not trusted: .+ Give --ca FILE .+ or --insecure\.$/m],
    [[...https, ...token, '--ca', other], /^The certificate of localhost:\d+ is not trusted/m],
    [
      // Linux connects to loopback, and the certificate does not name this address.
      ['http', '--target', `https://0.0.0.0:${httpsPort}`, ...token, ...ca],
      /^The certificate of 0\.0\.0\.0:\d+ is not valid for it/m,
    ],
    [['mqtt', ...mqtts.slice(0, 2), ...token], /^The certificate of localhost:\d+ is not trusted/m],
    [['http', '--target', `https://localhost:${engine.port}`, ...token], /is it a port without TLS\?$/im],
    [
      ['http', '--target', `http://localhost:${httpsPort}`, ...userOf(engine)],
      /Is it a port with TLS\? Then write https:/,
    ],
    [['http', '--target', 'http://host.invalid', ...token], /^host\.invalid is not found: its name has no address/m],
  ] as const) {
    const { printed, code } = await runBench(words);
    expect(printed).toMatch(sentence);
    expect(code).toBe(2);
  }
});

test('an API key creates, reads back and removes; it is in no file', async () => {
  const key = await engine.api.createKey();
  const target = ['http', '--target', `http://localhost:${engine.port}`, '--devices', '5', ...times];
  const { printed } = await runBench([...target, '--api-key', key]);
  const { file, page } = takeResult(printed);
  expect(printed).toMatch(/verified: the server shows all [1-9][\d ]* acknowledged records/);
  expect(printed).toContain('removed 5 devices');
  for (const text of [printed, JSON.stringify(file), page]) expect(text).not.toContain(key);
  const byVariable = await runBench(target, { env: { BENCH_API_KEY: key } });
  takeResult(byVariable.printed);
  expect(byVariable.printed).toContain('created by the owner of the API key');
  const wrong = await runBench([...target, '--api-key', `${key}x`]);
  expect(wrong.printed).toMatch(/^http:\/\/localhost:\d+ refuses the API key with 401/m);
  expect(wrong.code).toBe(2);
});

test('a user who cannot create devices is answered with the user that is needed', async () => {
  const { adminPassword } = engine.api.address;
  const target = ['http', '--target', `http://localhost:${engine.port}`];
  const system = await runBench([...target, '--user', 'sysadmin@millrace.local', '--password', adminPassword]);
  expect(system.printed).toContain(
    'sysadmin@millrace.local is a system administrator, who makes tenants and has no devices. ' +
      'Give an administrator of a tenant, who can create devices.',
  );
  expect(system.code).toBe(2);
  const platform = await OtherPlatform.listen({ authority: 'CUSTOMER_USER' });
  try {
    const customer = await runBench(['http', '--target', platform.url, ...signIn]);
    expect(customer.printed).toContain('me@x.org is a user of a customer, who cannot create devices.');
    expect(customer.code).toBe(2);
  } finally {
    platform.close();
  }
});

test('any server of the same protocol is measured, and what is refused is a result', async () => {
  const server = await standIn();
  const target = ['http', '--target', `http://localhost:${portOf(server)}`, ...times];
  try {
    const good = await run(...target, '--token', 'first,second');
    expect(good).toContain('not verified: reading back needs --user');
    const slow = await runBench([...target, '--token', 'first,second', '--p99-max', '0.00001']);
    expect(slow.printed).toMatch(/^target missed: p99 [\d.]+ ms, target 0\.01$/m);
    expect(slow.code).toBe(1);
    expect(takeResult(slow.printed).page).toMatch(/<li>p99 [\d.]+ ms, target 0\.01<\/li>/);
    const failed = await runBench([...target, '--token', 'first,unknown']);
    expect(failed.printed).toMatch(/^401 +[1-9]\d*$/m);
    const { file, page } = takeResult(failed.printed);
    const [{ load } = fail()] = loadsOf(file.result);
    expect(load.refused['401']).toBeGreaterThan(0);
    expect(page).toMatch(/<tr><td>401<\/td><td>\d+<\/td><td><\/td><\/tr>/);
    expect(page).toContain('Refused in each second');
  } finally {
    closeServer(server);
  }
});

function fail(): never {
  throw new Error('there is no load');
}

const signIn = ['--user', 'me@x.org', '--password', 'secret'];

test('another platform is measured and read back, also after messages that it refused', async () => {
  let messages = 0;
  const secure = { key: readFileSync(certificate.key, 'utf8'), cert: certificate.pem };
  const platform = await OtherPlatform.listen({ isRefused: () => messages++ < 40, authority: 'TENANT_ADMIN', secure });
  try {
    const target = ['http', '--target', platform.url, '--ca', certificate.cert, '--devices', '1', '--repeat', '2'];
    const { printed } = await runBench([...target, ...signIn, ...times]);
    const { page } = takeResult(printed);
    // Each reason has its count, of both measurements and of each.
    expect(printed).toMatch(/^429: too many +40 +40 +0$/m);
    expect(page).toContain('<tr><td>429</td><td>40</td><td>too many</td></tr>');
    expect(printed).toMatch(/^verified: the server shows all [\d ]+ acknowledged records$/m);
    expect(printed).toContain('removed 1 device\n');
    expect(printed).toContain('version unknown');
    expect(platform.devices.size).toBe(0);
  } finally {
    platform.close();
  }
});

test('an interrupt while devices are created leaves none: at another platform, and at a Millrace', async () => {
  // The first device is created long before the others, whose calls are in flight at the interrupt.
  const platform = await OtherPlatform.listen({ createMs: (n) => 100 * n });
  const there = new BenchRun(['http', '--target', platform.url, '--devices', '20', ...signIn]);
  const target = ['http', '--target', `http://localhost:${engine.port}`, '--devices', '20000'];
  const here = new BenchRun([...target, '--user', engine.api.address.adminEmail], {
    env: { BENCH_PASSWORD: engine.api.address.adminPassword },
  });
  try {
    await eventually(async () => platform.devices.size > 0, 60_000, 5);
    there.signal('SIGINT');
    expect(await there.code()).toBe(130);
    expect(platform.devices.size).toBe(0);
    await eventually(async () => (await devicesOf(engine, 'bench-')) > 0, 60_000, 20);
    here.signal('SIGINT');
    expect(await here.code()).toBe(130);
    expect(await devicesOf(engine, 'bench-')).toBe(0);
  } finally {
    for (const { child } of [there, here]) child.kill('SIGKILL');
    platform.close();
  }
});

test('a server that limits calls removes all devices as fast as it allows, and the command says what that took', async () => {
  let removals = 0;
  const platform = await OtherPlatform.listen({ isLimited: (method) => method === 'DELETE' && removals++ < 3 });
  try {
    const printed = await run('http', '--target', platform.url, ...signIn, '--devices', '20', ...times);
    expect(printed).toMatch(/^removed 20 devices; the server answered 429 3 times: 1(\.\d+)? s of waiting$/m);
    expect(platform.devices.size).toBe(0);
  } finally {
    platform.close();
  }
});

test('an interrupt while a server limits the creation of devices does not wait for the limit', async () => {
  const platform: OtherPlatform = await OtherPlatform.listen({
    isLimited: (method) => method === 'POST' && platform.devices.size >= 5,
    retryAfter: 600,
  });
  const bench = new BenchRun(['http', '--target', platform.url, ...signIn, '--devices', '200']);
  try {
    await eventually(async () => platform.limited > 0, 60_000, 5);
    bench.signal('SIGINT');
    const interruptedAt = performance.now();
    expect(await bench.code()).toBe(130);
    expect(performance.now() - interruptedAt).toBeLessThan(15_000);
    expect(platform.devices.size).toBe(0);
  } finally {
    bench.child.kill('SIGKILL');
    platform.close();
  }
});

test('a second interrupt ends at once and says how many devices are left; a later command removes them', async () => {
  const platform = await OtherPlatform.listen({ deleteMs: 200 });
  const flags = ['--devices', '200', '--rate', '50', '--warmup', '0', '--duration', '10m'];
  const bench = new BenchRun(['http', '--target', platform.url, ...signIn, ...flags]);
  try {
    await eventually(async () => platform.messages > 10, 60_000, 20);
    bench.signal('SIGINT');
    await eventually(async () => platform.devices.size < 200, 60_000, 5);
    bench.signal('SIGINT');
    expect(await bench.code()).toBe(130);
    const [, left = '', command = ''] =
      /^ended by SIGINT: (\d+) devices whose names begin with bench-[0-9a-f]{6}- are left\. To remove them: (.+)$/m.exec(
        bench.printed,
      ) ?? [];
    // The removals in flight at the second interrupt are carried out.
    expect(Number(left) - platform.devices.size, bench.printed).toBeLessThanOrEqual(32);
    expect(platform.devices.size).toBeGreaterThan(0);
    const words = command.replace('npm run bench -- ', '').split(' ');
    const { printed, code } = await runBench(words, { env: { BENCH_PASSWORD: 'secret' } });
    expect(printed).toMatch(/^removed \d+ devices$/m);
    expect(code).toBe(0);
    expect(platform.devices.size).toBe(0);
  } finally {
    bench.child.kill('SIGKILL');
    platform.close();
  }
});

test('a command whose output is no longer read removes its devices and ends', async () => {
  const platform = await OtherPlatform.listen();
  const flags = ['--devices', '3', '--rate', '50', '--warmup', '0', '--duration', '10m'];
  const bench = new BenchRun(['http', '--target', platform.url, ...signIn, ...flags]);
  try {
    await eventually(async () => platform.messages > 10, 60_000, 20);
    for (const stream of [bench.child.stdout!, bench.child.stderr!]) stream.destroy();
    // The next line is that of ten seconds.
    expect(await bench.code()).toBe(130);
    expect(platform.devices.size).toBe(0);
  } finally {
    bench.child.kill('SIGKILL');
    platform.close();
  }
});

test('an interrupt of peers leaves no device on the platform of --peer', async () => {
  const platform = await OtherPlatform.listen();
  const few = ['--blocks', '0', '--brokers', '0', 'http.devices=50', 'mqtt.connections=50'];
  const brief = ['--seconds', '1', '--warmup', '0', '--latencySeconds', '1', '--rate', '50', '--settleSeconds', '0'];
  const bench = new BenchRun(['peers', ...few, '--peer', `other=${platform.url}`, ...brief, ...signIn]);
  try {
    await eventually(async () => platform.messages > 100, 240_000, 5);
    bench.signal('SIGINT');
    expect(await bench.code()).toBe(130);
    expect(platform.devices.size).toBe(0);
  } finally {
    bench.child.kill('SIGKILL');
    platform.close();
  }
});

test('a server that ends for good while it is measured ends the load early: since when, and what can no longer be proved', async () => {
  const server = await startEngine({ workers: 1 });
  const { port, mqttPort } = server;
  const user = [...userOf(server), '--devices', '4'];
  const lasting = ['--rate', '50', '--warmup', '0', '--duration', '10m', '--give-up', '3s', '--repeat', '2'];
  const broker = ['--target', `mqtt://localhost:${mqttPort}`, '--rest', `http://localhost:${port}`];
  const runs = [
    runBench(['http', '--target', `http://localhost:${port}`, ...user, ...lasting]),
    runBench(['mqtt', ...broker, ...user, ...lasting]),
  ];
  try {
    const senders = async () => Number((await server.clickhouse('SELECT uniq(device) FROM telemetry'))[0]![0]);
    await eventually(async () => (await senders()) === 8, 60_000, 50);
    await server.killAll();
    for (const { printed, code } of await Promise.all(runs)) {
      const since = 'nothing was acknowledged from second [\\d.]+ on \\(\\d\\d:\\d\\d:\\d\\d UTC\\), for [\\d.]+ s';
      expect(printed).toMatch(
        new RegExp(`^ENDED EARLY: ${since}\\. The figures are those until then\\. Refused: .*ECONNREFUSED`, 'm'),
      );
      expect(printed).toMatch(/^ECONNREFUSED at the connect +\d+$/m);
      expect(printed).toMatch(/^NOT verified: the \d+ acknowledged records cannot be read \(.*ECONNREFUSED/m);
      expect(printed).toMatch(
        /^NOT removed: 4 devices whose names begin with bench-[0-9a-f]{6}- are left\. To remove/m,
      );
      expect(printed).not.toContain('    at ');
      expect(code).toBe(1);
      const { file, page } = takeResult(printed);
      const [{ load } = fail()] = loadsOf(file.result);
      // The figures are those of the time in which the server answered.
      expect(load.requestsPerSecond).toBeGreaterThan(40);
      expect(load.earlyEnd!.sinceSecond).toBeGreaterThan(0);
      expect(page).toContain('nothing is acknowledged any more');
    }
  } finally {
    await server.destroyAtOnce();
  }
});

test('a server that is unavailable for a moment is ridden out, and the moment is shown', async () => {
  let server: Server = await standIn();
  const port = portOf(server);
  const flags = ['--token', 'first,second', '--rate', '50', '--warmup', '0', '--duration', '8s', '--give-up', '6s'];
  let answered = 0;
  closeServer(server);
  await once(server, 'close');
  server = await standIn({ port, onRequest: () => (answered += 1) });
  const bench = new BenchRun(['http', '--target', `http://localhost:${port}`, ...flags]);
  try {
    await eventually(async () => answered > 100, 60_000, 20);
    closeServer(server);
    await once(server, 'close');
    const [awaySince, before] = [performance.now(), answered];
    await eventually(async () => performance.now() - awaySince > 2_000, 10_000, 50);
    server = await standIn({ port, onRequest: () => (answered += 1) });
    await bench.code();
    expect(answered).toBeGreaterThan(before + 100);
    expect(bench.printed).toMatch(/^nothing was acknowledged for \d\.\d s, from second \d+\.\d on$/m);
    expect(bench.printed).not.toContain('ENDED EARLY');
    const { file, page } = takeResult(bench.printed);
    const [{ load } = fail()] = loadsOf(file.result);
    expect(load.pauses).toHaveLength(1);
    // Begin and end are those of tenths of a second.
    expect(load.pauses[0]!.seconds).toBeGreaterThan(1.75);
    expect(page).toContain('nothing is acknowledged for');
  } finally {
    bench.child.kill('SIGKILL');
    closeServer(server);
  }
});

/** A server that is there and is no help: `onBytes` is called with what a client sends. */
async function bareServer(onBytes: (socket: Socket) => void): Promise<{ port: number; close(): void }> {
  const sockets = new Set<Socket>();
  const server = createTcpServer((socket) => {
    sockets.add(socket);
    socket.on('error', () => {});
    socket.on('data', () => onBytes(socket));
  });
  server.listen(0, '127.0.0.1');
  await once(server, 'listening');
  const close = () => {
    server.close();
    for (const socket of sockets) socket.destroy();
  };
  return { port: (server.address() as { port: number }).port, close };
}

test('a server that never answers, or refuses every message or connection, does not take the whole time', async () => {
  const silent = await bareServer(() => {});
  const body = '{"status":503,"message":"The journal is full."}';
  const answer = `HTTP/1.1 503 Service Unavailable\r\nContent-Length: ${body.length}\r\n\r\n${body}`;
  const refusing = await bareServer((socket) => socket.write(answer));
  const closing = await bareServer((socket) => socket.end());
  const denying = await bareServer((socket) => socket.write(Buffer.from([0x20, 2, 0, 5])));
  const long = ['--token', 'a,b', '--duration', '10m', '--give-up', '2s'];
  try {
    const [mute, noConnack, full, denied, closed, noMqtt] = await Promise.all([
      runBench(['http', '--target', `http://localhost:${silent.port}`, ...long]),
      runBench(['mqtt', '--target', `mqtt://localhost:${silent.port}`, ...long]),
      runBench(['http', '--target', `http://localhost:${refusing.port}`, '--rate', 'max', ...long]),
      runBench(['mqtt', '--target', `mqtt://localhost:${denying.port}`, ...long]),
      runBench(['http', '--target', `http://localhost:${closing.port}`, '--rate', '10', ...long]),
      runBench(['mqtt', '--target', `mqtt://localhost:${refusing.port}`, ...long]),
    ]);
    for (const { printed, code } of [mute, noConnack, full, denied, closed, noMqtt]) {
      takeResult(printed);
      expect(code).toBe(1);
    }
    expect(mute.printed).toMatch(/^ENDED EARLY: nothing was acknowledged at all, for [2-5]\.\d+ s\.$/m);
    expect(closed.printed).toMatch(/^ENDED EARLY: nothing was acknowledged at all, for [2-5]\.\d+ s\.$/m);
    expect(closed.printed).toMatch(/^connections that broke: \d+/m);
    expect(mute.printed).toContain('never answered: 2 messages');
    expect(noMqtt.printed).toMatch(
      /^ENDED EARLY: .+ Refused: no CONNACK but other bytes \(is it a port of MQTT\?\) \(40\)\.$/m,
    );
    expect(noConnack.printed).toMatch(
      /^ENDED EARLY: no connection was accepted, and nothing was sent\. Refused: no CONNACK \(2\)\.$/m,
    );
    expect(full.printed).toMatch(/^503: The journal is full\. +[1-9][\d ]*$/m);
    expect(full.printed).toMatch(
      /^ENDED EARLY: nothing was acknowledged at all, .+ Refused: 503: The journal is full\./m,
    );
    expect(denied.printed).toMatch(
      /^ENDED EARLY: no connection was accepted, and nothing was sent\. Refused: CONNACK 5 \(not authorized\) \(40\)\.$/m,
    );
  } finally {
    for (const server of [silent, refusing, closing, denying]) server.close();
  }
});

test('what an interrupted load has measured is a result, with the seconds until the interrupt', async () => {
  let answered = 0;
  const server = await standIn({ onRequest: () => (answered += 1) });
  const flags = ['--token', 'first,second', '--rate', '50', '--warmup', '0', '--duration', '60s'];
  // A terminal sends its signal to all processes of the group.
  const bench = new BenchRun(['http', '--target', `http://localhost:${portOf(server)}`, ...flags], { isGroup: true });
  try {
    await eventually(async () => answered > 150, 60_000, 20);
    bench.signal('SIGINT', true);
    expect(await bench.code()).toBe(130);
    expect(bench.printed).not.toContain('    at ');
    const { path, file } = takeResult(bench.printed);
    expect(path).toContain('http-target-');
    expect(file.result['isInterrupted']).toBe(true);
    expect(file['server']).toMatchObject({ address: `http://localhost:${portOf(server)}` });
    const [load] = loadsOf(file.result);
    expect(load!.path).toBe('load 1, unfinished');
    expect(load!.load.seconds.length).toBeGreaterThanOrEqual(2);
    expect(load!.load.requestsPerSecond).toBeGreaterThan(20);
  } finally {
    bench.child.kill('SIGKILL');
    closeServer(server);
  }
});

test('a search beside other work of the machine says that its rate may be too low', async () => {
  const server = await standIn();
  const burning = Array.from({ length: 2 * availableParallelism() }, () =>
    spawn('sh', ['-c', 'while :; do :; done'], { stdio: 'ignore' }),
  );
  const flags = ['--token', 'first,second', '--rate', '20', '--warmup', '0', '--duration', '1s'];
  try {
    const target = ['http', '--target', `http://localhost:${portOf(server)}`, ...flags];
    const printed = await run(...target, '--find-rate', '--p99-max', '1ms');
    expect(printed).toMatch(
      /^WARNING: in the second before .+ other work used \d+.* % of this machine's processors, .+ may be too low\.$/m,
    );
  } finally {
    for (const child of burning) child.kill('SIGKILL');
    closeServer(server);
  }
});

test('results go to the directory of BENCH_RESULTS, and one that cannot be written ends the command first', async () => {
  const server = await standIn();
  const results = join(directory, 'results');
  const flags = ['http', '--target', `http://localhost:${portOf(server)}`, '--token', 'first', ...times];
  try {
    const { printed } = await runBench(flags, { env: { BENCH_RESULTS: results } });
    expect(printed).toContain(`written to ${results}/http-target-`);
    expect(readdirSync(results)).toHaveLength(2);
    // From another directory: the files that are named are there, and those of the package are found.
    writeFileSync(join(directory, 'tokens'), 'first\n');
    const words = [...flags.slice(0, 3), '--tokens', 'tokens', ...times];
    const elsewhere = await runBench(words, { env: { BENCH_RESULTS: 'results' }, cwd: directory });
    expect(elsewhere.printed).toContain(`written to ${results}/http-target-`);
    expect(elsewhere.code).toBe(0);
    const file = join(directory, 'file');
    writeFileSync(file, '');
    const refused = await runBench(flags, { env: { BENCH_RESULTS: file } });
    expect(refused.printed).toMatch(
      /^The results cannot be written: EEXIST.+ BENCH_RESULTS names another directory\.$/m,
    );
    expect(refused.code).toBe(2);
  } finally {
    closeServer(server);
  }
});
