/**
 * A running engine is saved under load, and the backup is restored beside it. An incomplete backup is refused with one
 * sentence.
 */

import { type ChildProcess, spawn } from 'node:child_process';
import { once } from 'node:events';
import {
  cpSync,
  existsSync,
  mkdirSync,
  mkdtempSync,
  readdirSync,
  readFileSync,
  rmSync,
  statSync,
  symlinkSync,
  writeFileSync,
} from 'node:fs';
import { tmpdir } from 'node:os';
import { dirname, join } from 'node:path';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { checkFiles, readManifest } from '../../src/backup/manifest.ts';
import { openPostgres, type Postgres } from '../../src/postgres/client.ts';
import { type Device, eventually } from '../harness/api.ts';
import { type Engine, engineMain, inherited, prepareEngine, startEngine } from '../harness/engine.ts';
import { silentLog as silent } from '../harness/silent-log.ts';

const directory = mkdtempSync(join(tmpdir(), 'millrace-backup-'));
const backup = join(directory, 'backup');
const restoredDir = join(directory, 'restored');
const firstTs = Date.now() - 3_600_000;

let engine: Engine;
let restored: Engine;
let kept: Device;
let cleared: Device;
let gone: Device;
let ahead: Device;
let apiKey: string;
/** Points of `kept` that were acknowledged before the backup began; `n` counts them. */
let before = 0;
let sent = 0;

beforeAll(async () => {
  engine = await startEngine({ workers: 2 });
});

afterAll(async () => {
  await Promise.all([engine?.destroy(), restored?.destroy()]);
  rmSync(directory, { recursive: true, force: true });
});

class Command {
  output = '';
  readonly #child: ChildProcess;

  constructor(name: 'backup' | 'restore', argument: string, dataDir: string) {
    const env = { ...inherited(), DATA_DIR: dataDir };
    this.#child = spawn(process.execPath, [join(dirname(engineMain), `${name}.js`), argument], { env });
    const keep = (chunk: Buffer) => {
      this.output += chunk.toString('utf8');
    };
    this.#child.stdout!.on('data', keep);
    this.#child.stderr!.on('data', keep);
    this.exit = once(this.#child, 'close').then(([code]) => code as number | null);
  }

  readonly exit: Promise<number | null>;

  get hasEnded(): boolean {
    return this.#child.exitCode !== null || this.#child.signalCode !== null;
  }

  signal(signal: NodeJS.Signals): void {
    this.#child.kill(signal);
  }
}

async function send(count: number): Promise<void> {
  for (let n = 0; n < count; n += 1) {
    const body = `{"ts":${firstTs + sent},"values":{"n":${sent}}}`;
    expect(await engine.api.postTelemetry(kept.token, body)).toBe(200);
    sent += 1;
  }
}

async function post(device: Device, body: string): Promise<void> {
  expect(await engine.api.postTelemetry(device.token, body)).toBe(200);
}

async function greatestDevice(of: Engine): Promise<number> {
  const [row] = await of.clickhouse(
    'SELECT max(device) FROM (SELECT device FROM telemetry UNION ALL SELECT device FROM device_metadata)',
  );
  return Number(row![0]);
}

async function numberOf(of: Engine, key: string): Promise<number> {
  return eventually(async () => {
    const [row] = await of.clickhouse(`SELECT DISTINCT device FROM telemetry WHERE key = '${key}'`);
    return row ? Number(row[0]) : undefined;
  }, 20_000);
}

async function withPostgres<Result>(of: Engine, work: (postgres: Postgres) => Promise<Result>): Promise<Result> {
  const { url } = JSON.parse(readFileSync(join(of.dataDir, 'run', 'postgres.json'), 'utf8')) as { url: string };
  const postgres = openPostgres({ url, poolMax: 1, log: silent });
  return await work(postgres).finally(() => postgres.close());
}

/** A point that a journal of another host has stored, whose orders are a year ahead of the clock. */
async function storeAhead(device: Device): Promise<void> {
  await post(device, '{"ts":2000,"values":{"mark":1}}');
  const number = await numberOf(engine, 'mark');
  const writer = 9_999;
  const order = (BigInt(Date.now() + 365 * 86_400_000) << 20n) | BigInt(writer);
  const version = order - (1000n << 20n) + 2n ** 63n;
  await engine.clickhouseCommand(
    `INSERT INTO telemetry (device, key, ts, kind, num, version) VALUES (${number}, 'mark', 1000, 3, 7, ${version})`,
  );
  await withPostgres(engine, (postgres) =>
    postgres.query(
      `insert into journals (writer, host, run, order_high, settled, heard_at)
       values ($1, 'gone', '1', $2, 0, now() - interval '1 hour')`,
      [writer, order.toString()],
    ),
  );
}

test('a backup is made under load, and shows what it does', async () => {
  const names = ['kept', 'cleared', 'gone', 'ahead'];
  [kept, cleared, gone, ahead] = await Promise.all(names.map((name) => engine.api.createDevice(name)));
  apiKey = await engine.api.createKey();
  const attributes = `/api/plugins/telemetry/DEVICE/${kept.id}/SERVER_SCOPE`;
  expect((await engine.api.send('POST', attributes, { site: 'line\tone\n"two" \\N' })).status).toBe(200);
  await post(cleared, '[{"ts":1000,"values":{"old":1}},{"ts":2000,"values":{"old":2}}]');
  await send(100);
  await numberOf(engine, 'old');
  const range = 'keys=old&startTs=0&endTs=2000';
  const cut = await engine.api.send('DELETE', `/api/plugins/telemetry/DEVICE/${cleared.id}/timeseries/delete?${range}`);
  expect(cut.status).toBe(200);
  await storeAhead(ahead);

  // These points wait in the journals when the backup begins, and a delete of them waits in PostgreSQL.
  const clickhouse = engine.pids().get('clickhouse')!;
  process.kill(clickhouse, 'SIGSTOP');
  let command: Command;
  try {
    await send(100);
    for (let i = 1; i <= 20; i += 1) await post(gone, `{"ts":${i},"values":{"gone":${i}}}`);
    expect((await engine.api.send('DELETE', `/api/device/${gone.id}`)).status).toBe(200);
    before = sent;
    command = new Command('backup', backup, engine.dataDir);
    await eventually(() => /journal +\d+ workers/.test(command.output) || command.output.includes('millrace:'), 20_000);
  } finally {
    process.kill(clickhouse, 'SIGCONT');
  }
  let running = true;
  const load = (async () => {
    while (running) await send(5);
  })();
  const code = await command.exit;
  running = false;
  await load;
  expect(code, command.output).toBe(0);
  expect(command.output).toMatch(/clickhouse +\d+ tables, \d+ parts/);
  expect(command.output).toMatch(/postgresql +\d+ tables/);
  expect(command.output).toContain(`npm run restore -- ${backup}`);
  expect(existsSync(join(engine.dataDir, 'clickhouse', 'shadow', 'millrace_backup'))).toBe(false);
}, 90_000);

test('only its owner can read a backup', () => {
  expect(statSync(backup).mode & 0o777).toBe(0o700);
  for (const name of ['secrets.json', 'settings.json', 'manifest.json']) {
    expect(statSync(join(backup, name)).mode & 0o777, name).toBe(0o600);
  }
});

test('a copied segment is there, or the test shows nothing', () => {
  const journals = readdirSync(join(backup, 'journal'), { recursive: true, encoding: 'utf8' });
  expect(journals.some((path) => path.endsWith('.seg'))).toBe(true);
  expect(journals.some((path) => path.endsWith('/writer'))).toBe(false);
});

test('a second backup at the same time is refused, and the first one is whole', async () => {
  const dir = join(directory, 'first');
  const first = new Command('backup', dir, engine.dataDir);
  await eventually(() => first.output.includes('Backup of'), 20_000);
  first.signal('SIGSTOP');
  const second = new Command('backup', join(directory, 'second'), engine.dataDir);
  const code = await second.exit.finally(() => first.signal('SIGCONT'));
  expect(second.output).toMatch(/^millrace: Another backup of .* runs: wait for its end\.\n$/);
  expect(code).toBe(1);
  expect(await first.exit, first.output).toBe(0);
}, 60_000);

test('a backup that is interrupted leaves nothing, so the same directory may be named again', async () => {
  const dir = join(directory, 'interrupted');
  const interrupted = new Command('backup', dir, engine.dataDir);
  await eventually(() => /journal +\d+ workers/.test(interrupted.output), 20_000);
  interrupted.signal('SIGTERM');
  expect(await interrupted.exit, interrupted.output).toBe(1);
  expect(readdirSync(dir)).toEqual([]);
  expect(existsSync(join(engine.dataDir, 'clickhouse', 'shadow', 'millrace_backup'))).toBe(false);
  const again = new Command('backup', dir, engine.dataDir);
  expect(await again.exit, again.output).toBe(0);
}, 60_000);

const frozenDir = () => join(engine.dataDir, 'clickhouse', 'shadow', 'millrace_backup');

/** Runs a backup, and sends the signal after a part of the time that a whole one takes, or when `isDue`. */
async function interruptedBackup(dir: string, signal: NodeJS.Signals, isDue: () => boolean): Promise<Command> {
  const command = new Command('backup', dir, engine.dataDir);
  await eventually(() => isDue() || command.hasEnded, 60_000, 1);
  command.signal(signal);
  await command.exit;
  return command;
}

/** Moments that are spread over the whole time of a backup. */
async function momentsOf(count: number): Promise<(() => () => boolean)[]> {
  const began = performance.now();
  const whole = new Command('backup', join(directory, `whole-${began}`), engine.dataDir);
  expect(await whole.exit, whole.output).toBe(0);
  const ms = performance.now() - began;
  return Array.from({ length: count }, (_, i) => () => {
    const dueMs = performance.now() + (ms * (i + 0.5)) / count;
    return () => performance.now() >= dueMs;
  });
}

test('a signal at any moment leaves no file, or a complete backup', async () => {
  const dir = join(directory, 'signalled');
  const isWritten = () => () => existsSync(join(dir, 'manifest.json'));
  let complete = 0;
  for (const moment of [...(await momentsOf(10)), isWritten, isWritten, isWritten]) {
    const command = await interruptedBackup(dir, 'SIGTERM', moment());
    const code = await command.exit;
    expect(existsSync(frozenDir()), command.output).toBe(false);
    if (code === 0) {
      complete += 1;
      await checkFiles(dir, await readManifest(dir), () => {});
      expect(existsSync(join(dir, 'unfinished'))).toBe(false);
      rmSync(dir, { recursive: true });
    } else {
      expect(existsSync(dir) ? readdirSync(dir) : [], command.output).toEqual([]);
    }
  }
  expect(complete).toBeGreaterThanOrEqual(3);
}, 300_000);

test('what kill -9 leaves of a backup is refused by a restore, and the same command makes a complete one', async () => {
  const dir = join(directory, 'killed');
  for (const moment of await momentsOf(6)) {
    await interruptedBackup(dir, 'SIGKILL', moment());
    if (existsSync(join(dir, 'manifest.json'))) {
      await checkFiles(dir, await readManifest(dir), () => {});
      rmSync(dir, { recursive: true });
      continue;
    }
    const restore = new Command('restore', dir, join(directory, 'never'));
    expect(await restore.exit).toBe(1);
    expect(restore.output).toMatch(/is not a complete backup/);
  }
  const again = new Command('backup', dir, engine.dataDir);
  expect(await again.exit, again.output).toBe(0);
  await checkFiles(dir, await readManifest(dir), () => {});
  expect(existsSync(frozenDir())).toBe(false);
}, 300_000);

test('the data directory may be named by a link', async () => {
  const link = join(directory, 'link');
  symlinkSync(engine.dataDir, link);
  const command = new Command('backup', join(directory, 'by link'), link);
  expect(await command.exit, command.output).toBe(0);
}, 60_000);

test('what is no whole backup, or no empty directory, is refused', async () => {
  const refusal = async (name: 'backup' | 'restore', argument: string, dataDir: string) => {
    const command = new Command(name, argument, dataDir);
    expect(await command.exit, command.output).toBe(1);
    expect(command.output.trim().split('\n').at(-1)).toMatch(/^millrace: .*\.$/);
    return command.output;
  };
  const [empty, full] = [join(directory, 'empty'), join(directory, 'full')];
  mkdirSync(full);
  writeFileSync(join(full, 'x'), '');
  const inside = join(directory, 'inside');
  symlinkSync(join(engine.dataDir, 'journal'), inside);
  const device = join('postgres', 'device.copy');
  /** Makes a copy of the backup in which one file is different or missing. */
  const spoiled = (name: string, file: string, change: (bytes: Buffer) => Uint8Array | undefined): string => {
    const dir = join(directory, name);
    cpSync(backup, dir, { recursive: true });
    const bytes = change(readFileSync(join(dir, file)));
    if (bytes) writeFileSync(join(dir, file), bytes);
    else rmSync(join(dir, file));
    return dir;
  };
  const flip = (bytes: Buffer) => bytes.map((byte, at) => (at === 10 ? byte ^ 1 : byte));
  const cases: [Promise<string>, RegExp][] = [
    [refusal('restore', empty, empty), /is not a complete backup: there is no such directory/],
    [refusal('restore', full, empty), /is not a complete backup: it has no manifest.json/],
    [refusal('restore', backup, full), /is not empty/],
    [refusal('restore', backup, engine.dataDir), /is not empty/],
    [refusal('backup', full, engine.dataDir), /is not empty/],
    [refusal('backup', join(engine.dataDir, 'x'), engine.dataDir), /inside the data directory/],
    [refusal('backup', join(inside, 'x'), engine.dataDir), /inside the data directory/],
    [refusal('restore', backup, join(backup, 'data')), /is inside the backup/],
    [refusal('backup', empty, full), /No running instance/],
    [refusal('restore', spoiled('flipped', device, flip), empty), /device.copy does not match its checksum/],
    [
      refusal(
        'restore',
        spoiled('short', device, (bytes) => bytes.subarray(1)),
        empty,
      ),
      /device.copy has \d+ bytes instead of \d+/,
    ],
    [
      refusal(
        'restore',
        spoiled('missing', device, () => undefined),
        empty,
      ),
      /device.copy cannot be read/,
    ],
    [
      refusal(
        'restore',
        spoiled('torn', 'manifest.json', (bytes) => bytes.subarray(0, -100)),
        empty,
      ),
      /manifest.json does not match its checksum/,
    ],
  ];
  for (const [output, expected] of cases) expect(await output).toMatch(expected);
  expect(existsSync(empty)).toBe(false);

  writeFileSync(join(full, 'restoring'), '');
  expect(await refusal('restore', backup, full)).toContain('did not finish');
  const half = await prepareEngine({ dataDir: full });
  half.spawn();
  expect((await half.exit()).code).toBe(1);
  expect(half.output).toMatch(/A restore into .* did not finish/);
}, 60_000);

test('the restored instance has everything acknowledged before, beside the one that keeps running', async () => {
  const command = new Command('restore', backup, restoredDir);
  expect(await command.exit, command.output).toBe(0);
  restored = await startEngine({ dataDir: restoredDir, workers: 2 });
  await eventually(async () => {
    const { n } = await restored.api.readSeries(kept.id, ['n'], { startTs: firstTs, endTs: firstTs + before });
    return n?.length === before && n.every(({ value }, i) => value === i);
  }, 20_000);
  const { n } = await restored.api.readLatest(kept.id, ['n']);
  expect(Number(n![0]!.value)).toBeGreaterThanOrEqual(before - 1);
  const attributes = `/api/plugins/telemetry/DEVICE/${kept.id}/values/attributes/SERVER_SCOPE?keys=site`;
  expect(await (await restored.api.send('GET', attributes)).json()).toMatchObject([{ value: 'line\tone\n"two" \\N' }]);
  expect(await engine.readiness()).toBe(200);
}, 120_000);

test('what was deleted before stays deleted', async () => {
  const range = { startTs: 0, endTs: 3000 };
  const old = async () => (await restored.api.readSeries(cleared.id, ['old'], range))['old'];
  expect(await old()).toEqual([{ ts: 2000, value: 2 }]);
  expect((await restored.api.send('GET', `/api/device/${gone.id}`)).status).toBe(404);
  // These rows are in the journals of the backup: first all of them are shipped, then the delete is carried out again.
  await eventually(async () => {
    const metrics = await restored.api.metrics();
    return /^\w*wal_bytes\S* 0$/m.test(metrics);
  }, 60_000);
  await eventually(async () => {
    const counts = await restored.clickhouse(
      "SELECT count() FROM telemetry FINAL WHERE key = 'gone' AND kind != 0 UNION ALL SELECT count() FROM latest FINAL WHERE key = 'gone'",
    );
    return counts.every(([count]) => count === '0');
  }, 60_000);
  expect(await old()).toEqual([{ ts: 2000, value: 2 }]);
});

test('a delete covers points of the saved instance whose orders are ahead of the clock', async () => {
  const range = { startTs: 0, endTs: 3000 };
  const marks = async () => (await restored.api.readSeries(ahead.id, ['mark'], range))['mark'] ?? [];
  expect((await marks()).map(({ ts }) => ts)).toEqual([1000, 2000]);
  const query = 'keys=mark&deleteAllDataForKeys=true';
  const path = `/api/plugins/telemetry/DEVICE/${ahead.id}/timeseries/delete?${query}`;
  expect((await restored.api.send('DELETE', path)).status).toBe(200);
  expect(await marks()).toEqual([]);
});

test('tokens, passwords and API keys are unchanged', async () => {
  expect(await restored.api.postTelemetry(kept.token, '{"again":1}')).toBe(200);
  expect(await restored.api.postTelemetry(gone.token, '{"again":1}')).toBe(401);
  const answer = await fetch(`${restored.api.http}/api/auth/user`, {
    headers: { 'x-authorization': `ApiKey ${apiKey}` },
  });
  expect(answer.status).toBe(200);
});

test('hosts of the saved instance are not hosts of the restored one', async () => {
  const hosts = await withPostgres(restored, (postgres) =>
    postgres.query<{ id: string }>('select id::text from instance'),
  );
  expect(hosts).toEqual([{ id: readFileSync(join(restoredDir, 'host.id'), 'utf8').trim() }]);
});

test('a new device gets a number that neither instance has given out, and writers have ids of their own', async () => {
  const there = await engine.api.createDevice('there');
  await post(there, '{"there":1}');
  const known = Math.max(await numberOf(engine, 'there'), await greatestDevice(engine), await greatestDevice(restored));
  const here = await restored.api.createDevice('here');
  expect(await restored.api.postTelemetry(here.token, '{"here":1}')).toBe(200);
  expect(await numberOf(restored, 'here')).toBeGreaterThan(known);
  const writer = (dataDir: string) => readFileSync(join(dataDir, 'journal', 'worker-0', 'writer'), 'utf8');
  expect(writer(restoredDir)).not.toBe(writer(engine.dataDir));
});

test('a command has an id that the device has not got from the saved instance since the backup', async () => {
  const idOfCommand = async ({ api }: Engine): Promise<number> => {
    await api.sendPersistent(kept.id, { method: 'open', params: {} }, 'oneway');
    const polled = await fetch(`${api.http}/api/v1/${kept.token}/rpc?timeout=10000`);
    return ((await polled.json()) as { id: number }).id;
  };
  const last = await idOfCommand(engine);
  expect(await idOfCommand(restored)).toBeGreaterThan(last);
});

test('a PostgreSQL that was set back assigns no device number that ClickHouse has', async () => {
  const known = await greatestDevice(restored);
  await withPostgres(restored, async (postgres) => {
    await postgres.query("select setval('device_number_seq', (select max(number) - 1 from device))");
    // These rows are like those of a dump from a cluster that had many more transactions.
    await postgres.query(`update credential_changes set transaction_id = '9999999999'`);
  });
  rmSync(join(restoredDir, 'device-numbers.json'));
  await restored.restart();
  const device = await restored.api.createDevice('later');
  expect(await restored.api.postTelemetry(device.token, '{"later":1}')).toBe(200);
  expect(await numberOf(restored, 'later')).toBeGreaterThan(known);
  // A change of credentials is noticed in spite of these rows.
  expect((await restored.api.send('DELETE', `/api/device/${device.id}`)).status).toBe(200);
  await eventually(async () => (await restored.api.postTelemetry(device.token, '{"later":1}')) === 401, 10_000);
}, 60_000);
