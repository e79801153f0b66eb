/** A backup of an instance whose frames are in a stream, and its restore beside the same servers. */
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { dirname, join } from 'node:path';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { eventually } from '../harness/api.ts';
import { type Engine, engineMain, inherited, prepareEngine, startEngine } from '../harness/engine.ts';
import { NatsCluster } from '../harness/nats-cluster.ts';
import { streamSettings } from '../harness/stream-engine.ts';

const directory = mkdtempSync(join(tmpdir(), 'millrace-stream-backup-'));
const [backup, restoredDir] = [join(directory, 'backup'), join(directory, 'restored')];
let nodes: NatsCluster;
let env: Record<string, string>;
let engine: Engine;
let restored: Engine | undefined;

beforeAll(async () => {
  nodes = await NatsCluster.start();
  env = streamSettings(nodes);
  engine = await startEngine({ workers: 1, env });
});

afterAll(async () => {
  await Promise.all([engine?.destroyAtOnce(), restored?.destroyAtOnce()]);
  await nodes?.stop();
  rmSync(directory, { recursive: true, force: true });
});

async function command(name: 'backup' | 'restore', target: string, dataDir: string) {
  const commandEnv = { ...inherited(), DATA_DIR: dataDir };
  const child = spawn(process.execPath, [join(dirname(engineMain), `${name}.js`), target], { env: commandEnv });
  let output = '';
  for (const each of [child.stdout, child.stderr]) each.on('data', (chunk) => (output += chunk));
  const [code] = await once(child, 'close');
  return { code: code as number, output };
}

async function accepted(of: Engine, token: string, body: string): Promise<void> {
  await eventually(async () => (await of.api.postTelemetry(token, body)) === 200, 60_000);
}

async function countOf(of: Engine, key: string): Promise<number> {
  const [row] = await of.clickhouse(`SELECT count() FROM telemetry FINAL WHERE key = '${key}'`);
  return Number(row![0]);
}

test('a backup has what was acknowledged before it, and a restore takes up the same streams without a false loss', async () => {
  const device = await engine.api.createDevice('saved');
  for (let n = 0; n < 50; n += 1) await accepted(engine, device.token, `{"ts":${1_000 + n},"values":{"before":${n}}}`);
  const saved = await command('backup', backup, engine.dataDir);
  expect(saved.code, saved.output).toBe(0);
  // The streams go on: their numbers pass the position that the backup has.
  for (let n = 0; n < 50; n += 1) await accepted(engine, device.token, `{"ts":${1_000 + n},"values":{"after":${n}}}`);
  await eventually(async () => (await countOf(engine, 'after')) === 50, 60_000);
  await engine.stop();

  const made = await command('restore', backup, restoredDir);
  expect(made.code, made.output).toBe(0);
  restored = await prepareEngine({ workers: 1, env, dataDir: restoredDir });
  await restored.start();
  await eventually(async () => (await countOf(restored!, 'before')) === 50, 60_000);
  await accepted(restored, device.token, '{"restored":1}');
  await eventually(async () => (await countOf(restored!, 'restored')) === 1, 60_000);
  await eventually(async () => (await restored!.metric('stream_frames{lane="live"}')) === 0, 30_000);
  expect(restored.events('stream_lost')).toEqual([]);
}, 400_000);

test('a second restore of the backup does not get frames of the first one, whose devices have the same numbers', async () => {
  const dataDir = join(directory, 'again');
  const made = await command('restore', backup, dataDir);
  expect(made.code, made.output).toBe(0);
  const again = await prepareEngine({ workers: 1, env, dataDir });
  try {
    again.spawn(env);
    expect((await again.exit(60_000)).code).not.toBe(0);
    expect(again.output).toMatch(
      /The stream millrace-live .* was taken up by another instance .*: choose another STREAM_NAME/,
    );
    // A device of each restore has the same number.
    await again.start({ ...env, STREAM_NAME: 'again' });
    const devices = await Promise.all([restored!, again].map((of) => of.api.createDevice('same number')));
    const numbers = await Promise.all(
      [restored!, again].map(async (of, i) => {
        const body = `{"ts":1000,"values":{"same":${i}}}`;
        await accepted(of, devices[i]!.token, body);
        await eventually(async () => (await countOf(of, 'same')) === 1, 60_000);
        return (await of.clickhouse("SELECT DISTINCT device, int FROM telemetry WHERE key = 'same'"))[0]!.map(Number);
      }),
    );
    expect(numbers).toEqual([
      [numbers[0]![0], 0],
      [numbers[0]![0], 1],
    ]);
  } finally {
    await again.destroyAtOnce();
  }
}, 300_000);

test('a backup is refused while the streams hold frames that ClickHouse does not have', async () => {
  const running = restored!;
  const device = await running.api.createDevice('waits');
  await nodes.manage((manager) => manager.consumers.pause('millrace-live', 'millrace', new Date(Date.now() + 600_000)));
  // The server of the consumer learns of the pause a moment later.
  await eventually(() =>
    nodes.manage(async (manager) => (await manager.consumers.info('millrace-live', 'millrace')).paused === true),
  );
  await accepted(running, device.token, '{"waits":1}');
  const refused = await command('backup', join(directory, 'refused'), running.dataDir);
  expect(refused.code).toBe(1);
  expect(refused.output).toMatch(/The stream millrace-live holds 1 frames that ClickHouse does not have/);
  await nodes.manage((manager) => manager.consumers.resume('millrace-live', 'millrace'));
  const saved = await command('backup', join(directory, 'accepted'), running.dataDir);
  expect(saved.code, saved.output).toBe(0);
}, 300_000);
