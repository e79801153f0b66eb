/** Commands of an operator beside an instance that runs, and without one. */
import { execFile, spawn } from 'node:child_process';
import { once } from 'node:events';
import {
  chmodSync,
  cpSync,
  existsSync,
  mkdirSync,
  mkdtempSync,
  readFileSync,
  rmSync,
  statSync,
  writeFileSync,
} from 'node:fs';
import { createServer } from 'node:net';
import { availableParallelism, tmpdir } from 'node:os';
import { join } from 'node:path';
import { promisify } from 'node:util';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { realDisk } from '../../src/journal/disk.ts';
import { Quarantine } from '../../src/journal/quarantine.ts';
import { eventually } from '../harness/api.ts';
import { type Engine, prepareEngine } from '../harness/engine.ts';
import { freePort } from '../harness/ports.ts';

const directory = mkdtempSync(join(tmpdir(), 'millrace-commands-'));
const logFile = join(directory, 'millrace.log');
const signingKey = Buffer.from('millstone'.repeat(12)).toString('base64');
let engine: Engine;

beforeAll(async () => {
  const env = { JWT_TOKEN_SIGNING_KEY: signingKey, HTTP_BIND_PROT: 'hunter2-millstone' };
  engine = await prepareEngine({ logFile, workers: 1, reports: true, env });
  await engine.start();
});

afterAll(async () => {
  await engine?.destroy();
  rmSync(directory, { recursive: true, force: true });
});

interface Run {
  code: number;
  output: string;
}

async function run(command: string, ...more: string[]): Promise<Run> {
  return await runWith(engine.environment, command, ...more);
}

async function runWith(env: NodeJS.ProcessEnv, command: string, ...more: string[]): Promise<Run> {
  const child = spawn(process.execPath, [`dist/${command}.js`, ...more], { env });
  let output = '';
  for (const stream of [child.stdout, child.stderr]) stream.on('data', (chunk) => (output += chunk));
  const [code] = await once(child, 'close');
  return { code: code as number, output };
}

/** The files of an archive by name. */
async function unpack(archive: string): Promise<Map<string, string>> {
  const { stdout: names } = await promisify(execFile)('tar', ['-tzf', archive]);
  await promisify(execFile)('tar', ['-xzf', archive, '-C', directory]);
  const paths = names.trim().split('\n');
  return new Map(paths.map((path) => [path.split('/').at(-1)!, readFileSync(join(directory, path), 'utf8')]));
}

test('every address that the start prints opens', async () => {
  await eventually(() => engine.output.includes('Stop with Ctrl-C.'));
  const [banner = ''] = engine.output.split('Send telemetry, sign in');
  const addresses = [...banner.matchAll(/http:\/\/\S+/g)].map(([address]) => address.replace('localhost', '127.0.0.1'));
  expect(addresses.length).toBeGreaterThanOrEqual(6);
  for (const address of addresses.filter((each) => !/^http:\/\/127\.0\.0\.1:\d+$/.test(each))) {
    expect((await fetch(address)).status, address).toBe(200);
  }
  expect(banner).toContain('Warning            HTTP_BIND_PROT is no setting of Millrace.');
});

test('doctor checks a running instance and sends a data point through it', async () => {
  const [good, wrong] = await Promise.all([run('doctor'), run('doctor', '--token', 'no-such-token')]);
  expect(good.code, good.output).toBe(0);
  expect(good.output).toMatch(/^warning +settings +HTTP_BIND_PROT is no setting .*HTTP_BIND_PORT\?$/m);
  expect(good.output).toMatch(
    /^(ok|warning) +disk sync +half of the commits take up to [\d.]+ ms, 99 of 100 up to [\d.]+ ms: [\d ]+ commits\/s/m,
  );
  expect(good.output).toMatch(/^ok +clickhouse +The embedded ClickHouse is \d+\./m);
  expect(good.output).toMatch(/^ok +postgresql +The embedded PostgreSQL is \d+\./m);
  expect(good.output).toMatch(/^ok +readiness +http:\/\/127\.0\.0\.1:\d+\/readyz answers 200 ready\.$/m);
  expect(good.output).toMatch(
    /^ok +round trip +A data point was acknowledged after \d+ ms and could be read after \d+ ms\.$/m,
  );
  expect(good.output).toMatch(/ 0 faults$/m);
  expect(good.output).not.toContain('hunter2');
  expect(wrong.code).toBe(1);
  expect(wrong.output).toMatch(/^fault +round trip +http:\S+ answers a data point with 401: /m);
  expect(wrong.output).not.toContain('no-such-token');
});

test('commands with a wrong DATA_DIR say so', async () => {
  const env = { ...engine.environment, DATA_DIR: join(directory, 'elsewhere') };
  for (const [command, verb] of [
    ['journal', 'list'],
    ['journal', 'verify'],
    ['quarantine', 'list'],
  ] as const) {
    const { code, output } = await runWith(env, command, verb);
    expect({ code, output }).toEqual({
      code: 1,
      output: expect.stringMatching(/^millrace: There is no journal in .*DATA_DIR.*\.\n$/),
    });
  }
});

test('commands of a user who may not read DATA_DIR say so', async () => {
  const closed = join(directory, 'closed');
  for (const name of ['journal', 'run']) mkdirSync(join(closed, name), { recursive: true });
  for (const name of ['journal', 'run']) chmodSync(join(closed, name), 0);
  // Without a mapping of users, the process may do what the owner of a file may do, also as root.
  const runWithoutRights = async (command: string, ...words: string[]) => {
    const args = ['--user', process.execPath, `dist/${command}.js`, ...words];
    const env = { ...engine.environment, DATA_DIR: closed };
    return await promisify(execFile)('unshare', args, { env }).catch(
      (error: { stdout: string; stderr: string }) => error,
    );
  };
  const doctor = await runWithoutRights('doctor');
  expect(doctor.stdout).toMatch(
    /^warning +instance +This user may not read \S+\/closed, .* as the user that runs Millrace\.$/m,
  );
  const journals = await runWithoutRights('journal', 'list');
  expect(journals.stderr).toMatch(/^millrace: EACCES: .*\/journal': call this as the user that runs Millrace\.\n$/);
  for (const name of ['journal', 'run']) chmodSync(join(closed, name), 0o700);
});

test('a directory that is no journal is neither whole nor stored', async () => {
  for (const verb of ['verify', 'show', 'ship']) {
    for (const dir of [engine.dataDir, join(engine.dataDir, 'journal'), logFile]) {
      const { code, output } = await run('journal', verb, dir);
      expect({ verb, code, output }).toEqual({
        verb,
        code: 1,
        output: expect.stringMatching(/^millrace: \S+ is no journal: name a directory such as .*\.\n$/),
      });
    }
  }
  expect((await run('journal', 'verify', join(engine.dataDir, 'journal', 'worker-0'))).code).toBe(0);
});

test('a journal is not shipped while PostgreSQL does not say whether it is of this installation', async () => {
  const copy = join(directory, 'of-another', 'worker-0');
  cpSync(join(engine.dataDir, 'journal', 'worker-0'), copy, { recursive: true });
  writeFileSync(join(copy, 'installation'), 'f'.repeat(32));
  const away = `postgres://millrace@127.0.0.1:${await freePort()}/millrace`;
  const { code, output } = await runWith({ ...engine.environment, DATABASE_URL: away }, 'journal', 'ship', copy);
  expect({ code, output }).toEqual({
    code: 1,
    output: expect.stringMatching(
      /^millrace: No row is shipped, because PostgreSQL does not say .*DATABASE_URL.*\.\n$/,
    ),
  });
  expect(existsSync(copy)).toBe(true);
  const other = await run('journal', 'ship', copy);
  expect(other.output).toMatch(/^millrace: \S+ is a journal of another installation: /);
});

test('an entry of the quarantine that several journals have is named with its journal', async () => {
  const env = { ...engine.environment, DATA_DIR: join(directory, 'damaged') };
  for (const [n, text] of ['of the first', 'of the second'].entries()) {
    const quarantine = await Quarantine.open(realDisk, join(env.DATA_DIR, 'journal', `worker-${n}`), 1024);
    await quarantine.addGap('3-1.seg', 4096, Buffer.from(text));
  }
  const name = 'gap-3-1.seg-4096';
  const listed = await runWith(env, 'quarantine', 'list');
  expect(listed.output).toMatch(new RegExp(`^worker-0/${name}  gap .*\\nworker-1/${name}  gap .*\\n2 entries`));
  for (const verb of ['show', 'remove']) {
    const { code, output } = await runWith(env, 'quarantine', verb, name);
    const both = `name worker-0/${name} or worker-1/${name}.`;
    expect({ code, output }).toEqual({
      code: 1,
      output: `millrace: Several journals have an entry ${name}: ${both}\n`,
    });
  }
  expect((await runWith(env, 'quarantine', 'remove', `worker-1/${name}`)).code).toBe(0);
  expect((await runWith(env, 'quarantine', 'show', name)).output).toContain(join('worker-0', 'quarantine', name));
});

test('a command that would act on its first argument only refuses the others', async () => {
  const copies = ['worker-0', 'worker-1'].map((name) => join(directory, 'copies', name));
  for (const copy of copies) cpSync(join(engine.dataDir, 'journal', 'worker-0'), copy, { recursive: true });
  for (const [command, ...words] of [
    ['journal', 'ship', ...copies],
    ['journal', 'verify', ...copies],
    ['journal', 'show', copies[0]!, '1-1.seg', '1-2.seg'],
    ['journal', 'list', 'worker-0'],
    ['journal', 'drain', 'worker-0'],
    ['quarantine', 'list', 'rows-1'],
    ['quarantine', 'remove', 'rows-1', 'rows-2'],
    ['quarantine', 'replay', 'rows-1', 'rows-2'],
  ] as [string, ...string[]][]) {
    const { code, output } = await run(command, ...words);
    expect({ words, code, output }).toEqual({
      words,
      code: 1,
      output: expect.stringMatching(new RegExp(`^millrace: usage: npm run ${command} -- .*\n$`)),
    });
  }
  for (const copy of copies) expect(existsSync(copy), copy).toBe(true);
});

test('a journal that cannot be read is named, and hides no other journal', async () => {
  const dataDir = join(directory, 'half');
  cpSync(join(engine.dataDir, 'journal'), join(dataDir, 'journal'), { recursive: true });
  // Reading the file of a segment fails with EISDIR, as a damaged disk fails with EIO.
  mkdirSync(join(dataDir, 'journal', 'worker-7', '1-1.seg'), { recursive: true });
  const env = { ...engine.environment, DATA_DIR: dataDir };
  const listed = await runWith(env, 'journal', 'list');
  expect(listed.output).toMatch(/^worker-0 /m);
  expect(listed.output).toMatch(/^worker-7 \(orphan\) cannot be read: \S/m);
  const verified = await runWith(env, 'journal', 'verify');
  expect(verified.code).toBe(1);
  expect(verified.output).toMatch(/^worker-0: \d+ segment/m);
  expect(verified.output).toMatch(/^worker-7: cannot be read: \S/m);
  expect(verified.output).toMatch(/^1 journal cannot be read$/m);
  expect(verified.output).not.toContain('every frame is whole');
});

test('a backup into what is no directory ends with one sentence', async () => {
  const { code, output } = await run('backup', logFile);
  expect({ code, output }).toEqual({
    code: 1,
    output: expect.stringMatching(
      /^millrace: The backup cannot be written \(ENOTDIR.*\): free space, or name another directory\.\n$/,
    ),
  });
});

test('while the stores do not answer, doctor and backup say so in one sentence each', async () => {
  const pids = engine.pids();
  const stopped = [pids.get('clickhouse')!, pids.get('postgres')!];
  const target = join(directory, 'no-backup');
  for (const pid of stopped) process.kill(pid, 'SIGSTOP');
  try {
    await eventually(async () => (await engine.status()).status === 'degraded', 30_000);
    const [doctor, backup] = await Promise.all([run('doctor'), run('backup', target)]);
    expect(doctor.output).toMatch(/^fault +clickhouse +The embedded ClickHouse does not answer: .*[^.]\.$/m);
    expect(doctor.output).toMatch(/^fault +postgresql +The embedded PostgreSQL does not answer: .*[^.]\.$/m);
    expect(doctor.output).toMatch(/^warning +readiness .* 200 degraded \(clickhouse away.*\): The .*[^.]\.$/m);
    expect(doctor.output).toMatch(/^warning +round trip .*because PostgreSQL does not answer: .*--token\.$/m);
    expect(backup.code).toBe(1);
    const lines = backup.output.trim().split('\n');
    expect(lines.at(-1)).toMatch(/^millrace: The embedded \w+ cannot be saved \(.*\): when .* again\.$/);
    expect(lines.filter((line) => /^ +at /.test(line))).toEqual([]);
  } finally {
    for (const pid of stopped) process.kill(pid, 'SIGCONT');
  }
  await eventually(async () => (await engine.status()).status === 'ready', 30_000);
});

test('stored frames hide none that wait', async () => {
  const { api } = engine;
  const { token } = await api.newDevice();
  const firstTs = Date.now() - 60_000;
  const post = (n: number) => api.postTelemetry(token, `{"ts":${firstTs + n},"values":{"n":${n}}}`);
  // Each message is a frame of its own, because the next one is sent after the acknowledgement.
  for (let n = 0; n < 1_100; n += 1) expect(await post(n)).toBe(200);
  await eventually(async () => (await engine.metric('wal_bytes')) === 0, 60_000);
  const clickhouse = engine.pids().get('clickhouse')!;
  process.kill(clickhouse, 'SIGSTOP');
  try {
    expect(await post(1_100)).toBe(200);
    const { output } = await run('journal', 'show', 'worker-0');
    const frames = output.split('\n').filter((line) => line.includes('  order '));
    expect(frames).toEqual([expect.stringMatching(/ 1 row {2}\d+ bytes$/)]);
    expect(output).toMatch(/^left out: \d{4,} frames of these segments/m);
    const segment = frames[0]!.split(' ')[0]!;
    const whole = await run('journal', 'show', 'worker-0', segment);
    expect(whole.output).toMatch(/ bytes {2}stored$/m);
    expect(whole.output).toMatch(/"key":"n"/);
  } finally {
    process.kill(clickhouse, 'SIGCONT');
  }
  await eventually(async () => (await engine.status()).status === 'ready', 30_000);
});

test('a bundle has what a report needs, and no secret, token, address or telemetry', async () => {
  const { api } = engine;
  const device = await api.newDevice();
  await api.postTelemetry(device.token, '{"secret-key-of-a-device": "millstone-telemetry"}');
  await api.send('POST', '/api/auth/login', { username: 'wrong@orchard.example', password: 'wrong-password' });
  await eventually(() => engine.output.includes('Stop with Ctrl-C.'));
  const archive = join(directory, 'bundle.tar.gz');
  const { code, output } = await run('bundle', '--log', logFile, '--out', archive);
  expect(code, output).toBe(0);
  expect(statSync(archive).mode & 0o777).toBe(0o600);
  expect(statSync(archive).size).toBeLessThan(20 * 1024 * 1024);
  const files = await unpack(archive);
  expect([...files.keys()]).toEqual([
    'settings.txt',
    'versions.json',
    'machine.json',
    'checks.txt',
    'processes.json',
    'readyz.json',
    'metrics.txt',
    'journal.txt',
    'clickhouse.json',
    'postgres.json',
    'log.ndjson',
    'contents.txt',
  ]);
  expect(files.get('settings.txt')).toMatch(/^auth\.signingKey .*\(set\)/m);
  expect(JSON.parse(files.get('versions.json')!).packages.pg).toMatch(/^\d/);
  expect(JSON.parse(files.get('processes.json')!).map(({ role }: { role: string }) => role)).toContain('worker-0');
  expect(JSON.parse(files.get('readyz.json')!).status).toBe('ready');
  expect(files.get('metrics.txt')).toMatch(/^# TYPE /m);
  expect(files.get('journal.txt')).toMatch(/^worker-0 /m);
  expect(JSON.parse(files.get('clickhouse.json')!)[0].schema[0]).toMatchObject({ version: 1 });
  expect(JSON.parse(files.get('postgres.json')!).tables.length).toBeGreaterThan(10);
  expect(files.get('log.ndjson')).toContain('"event":"ready"');

  const kept = JSON.parse(readFileSync(join(engine.dataDir, 'secrets.json'), 'utf8')) as Record<string, string>;
  const demoToken = /token (\S+)/.exec(engine.output)![1]!;
  const { adminEmail, adminPassword } = api.address;
  const secrets = [...Object.values(kept), demoToken, device.token, signingKey, 'millstone', adminEmail, adminPassword];
  secrets.push('wrong@orchard', 'wrong-password', 'hunter2', 'secret-key-of-a-device');
  for (const [name, text] of files) {
    for (const secret of secrets) expect(text.includes(secret), `${secret} in ${name}`).toBe(false);
  }
  const again = await run('bundle', '--out', archive);
  expect(again).toMatchObject({ code: 1, output: expect.stringContaining('EEXIST') });
});

test('without an instance, doctor checks ports and packages, and a bundle says what is missing', async () => {
  await engine.stop();
  const server = createServer().listen(engine.mqttPort, '127.0.0.1');
  await once(server, 'listening');
  const doctor = run('doctor');
  const archive = join(directory, 'stopped.tar.gz');
  const bundle = await run('bundle', '--out', archive);
  expect(bundle.code, bundle.output).toBe(0);
  expect(bundle.output).toMatch(/^ +metrics\.txt +missing: no instance runs/m);
  const journals = (await unpack(archive)).get('journal.txt');
  expect(journals).toMatch(/^worker-0 /m);
  expect(journals).toMatch(/^deletes: unknown, .* the embedded one is not running\. Start Millrace to see them\.$/m);
  const ofAllCores = join(directory, 'all-cores.tar.gz');
  await runWith({ ...engine.environment, WORKERS: '0' }, 'bundle', '--out', ofAllCores);
  const cores = availableParallelism();
  expect((await unpack(ofAllCores)).get('checks.txt')).toContain(`(${cores} ${cores === 1 ? 'worker' : 'workers'})`);
  const hosts = await run('hosts');
  expect(hosts).toEqual({
    code: 1,
    output: 'millrace: The embedded PostgreSQL does not answer: start Millrace first, or call `npm run doctor`.\n',
  });
  const { code, output } = await doctor;
  server.close();
  expect(code, output).toBe(1);
  expect(output).toMatch(/^fault +ports +Port \d+ on 127\.0\.0\.1 is taken by another program: .*MQTT_BIND_PORT\.$/m);
  expect(output).toMatch(/^ok +clickhouse +The embedded ClickHouse \S+ is installed and does not run now\.$/m);
  expect(output).toMatch(/^ok +round trip +No instance was found/m);
});

test.each([
  ['hosts'],
  ['shards', 'list'],
  ['shards', '--no-such-flag'],
  ['migrate'],
  ['migrate', '--no-such-flag'],
  ['journal', '--no-such-flag'],
  ['quarantine', '--no-such-flag'],
  ['config', '--no-such-flag'],
  ['stream', '--no-such-flag'],
])('without its stores or with a wrong word a command says so in one line: %s %s', async (command, ...words) => {
  const env = {
    ...engine.environment,
    DATABASE_URL: 'postgres://u:p@127.0.0.1:1/none',
    CLICKHOUSE_URL: 'http://127.0.0.1:1',
  };
  const { code, output } = await runWith(env, command, ...words);
  expect(code).toBe(1);
  expect(output).toMatch(/^millrace: [^\n]*\n$/);
});
