/**
 * WORKERS is lowered after a crash: the journals of the workers that are gone are shipped by those that are left.
 * /readyz, /metrics and the commands show the frames that wait meanwhile or cannot be stored.
 */
import { execFile } from 'node:child_process';
import { readdirSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { afterEach, expect, test } from 'vitest';
import { realDisk } from '../../src/journal/disk.ts';
import { Quarantine } from '../../src/journal/quarantine.ts';
import { Suspects } from '../../src/journal/suspects.ts';
import { eventually } from '../harness/api.ts';
import { type Engine, inherited, root, startEngine } from '../harness/engine.ts';

let engine: Engine;

afterEach(() => engine?.destroy());

/** A command as an operator runs it beside the engine, here without the WORKERS of the last start. */
function command(script: string, ...words: string[]): Promise<string> {
  const env = { ...inherited(), DATA_DIR: engine.dataDir, WORKERS: '3' };
  return new Promise((resolve) => {
    execFile(process.execPath, [join(root, 'dist', `${script}.js`), ...words], { cwd: root, env }, (_, out, wrong) =>
      resolve(out + wrong),
    );
  });
}

async function reasons(): Promise<string> {
  const answer = await fetch(`${engine.api.http}/readyz`);
  return ((await answer.json()) as { reasons: string[] }).reasons.join('\n');
}

/** Waits until a reason of /readyz matches. */
function eventuallyReady(pattern: RegExp): Promise<true> {
  return eventually(async () => (pattern.test(await reasons()) ? true : undefined), 20_000);
}

/**
 * Everything that a worker may have moved to its quarantine: a row that no store accepts, a damaged range, a segment
 * with a damaged header.
 */
async function setAside(dir: string): Promise<void> {
  const suspects = await Suspects.open(realDisk, dir, 1e9, async () => {});
  await suspects.add([{ payload: Buffer.from('no block'), rows: 1, order: 5n, reason: 'code 33' }]);
  const quarantine = await Quarantine.open(realDisk, dir, 1e9);
  await quarantine.addGap('1-1', 8192, Buffer.from('damaged bytes'));
  writeFileSync(join(dir, '900-1.seg'), Buffer.alloc(65_536, 7));
}

test('what is in the journal of a worker that is not started again is stored, and its directory goes', async () => {
  // Late rows count as overdue at once.
  engine = await startEngine({ workers: 3, env: { SHIP_LATE_SECONDS_MAX: '0' } });
  const device = await engine.api.createDevice('many workers');
  expect(await engine.api.postTelemetry(device.token, '{"ts":1,"values":{"first":1}}')).toBe(200);
  process.kill(engine.pids().get('clickhouse')!, 'SIGSTOP');
  const count = 60;
  for (let n = 0; n < count; n += 1) {
    // A connection of its own for each, so that the kernel spreads them over the workers.
    const answer = await fetch(`${engine.api.http}/api/v1/${device.token}/telemetry`, {
      method: 'POST',
      headers: { connection: 'close' },
      body: `{"ts":${1000 + n},"values":{"n":${n}}}`,
    });
    expect(answer.status).toBe(200);
  }
  await eventuallyReady(/late lane behind: its oldest rows wait for \d+ s/);
  await engine.killAll();
  await setAside(join(engine.dataDir, 'journal', 'worker-2'));

  engine.spawn({ WORKERS: '1' });
  await engine.ready();
  await eventually(async () => {
    const { n } = await engine.api.readSeries(device.id, ['n'], { startTs: 1000, endTs: 1000 + count });
    return n?.length === count ? true : undefined;
  }, 20_000);
  const journals = join(engine.dataDir, 'journal');
  await eventually(async () => (readdirSync(journals).includes('worker-1') ? undefined : true), 10_000);
  // A journal with a row that is tried again stays.
  expect(readdirSync(journals)).toEqual(['worker-0', 'worker-2']);
  await eventuallyReady(/rows in quarantine: 2 entries of orphan journals/);
  await eventuallyReady(/1 orphan journal with 0 bytes/);
  const metrics = await engine.api.metrics();
  for (const sample of [
    'orphan_journals 1',
    'orphan_suspect_rows 1',
    'orphan_quarantine_entries 2',
    'deletes_waiting 0',
  ])
    expect(metrics).toMatch(new RegExp(`^millrace_${sample}$|^${sample}$`, 'm'));

  const table = await command('journal', 'list');
  expect(table).toMatch(/^worker-0 +worker .+ - +-$/m);
  expect(table).toMatch(/^worker-2 +orphan .+ 1 row +2 entries$/m);
  expect(table).toMatch(/^deletes: 0 wait; 0 will be repeated/m);
  expect(await command('quarantine', 'show', 'gap-1-1-8192')).toMatch(
    /1-1 8192\.\.8205.+13 bytes(.|\n)+no row can be read/,
  );
  expect(await command('quarantine', 'show', 'lost-900-1.seg')).toMatch(/900-1\.seg.+header is damaged/);
  expect(await command('quarantine', 'replay', 'gap-1-1-8192')).toMatch(/^gap-1-1-8192 stays: these bytes are damaged/);
  expect(await command('quarantine', 'show', 'none')).toMatch(/There is no entry none/);
});
