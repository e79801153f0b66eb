/** WORKERS is lowered after a crash: the journals of the workers that are gone are shipped by those that are left. */
import { readdirSync } from 'node:fs';
import { join } from 'node:path';
import { afterEach, expect, test } from 'vitest';
import { eventually } from '../api.ts';
import { type Engine, startEngine } from '../engine.ts';

let engine: Engine;

afterEach(() => engine?.destroy());

test('what is in the journal of a worker that is not started again is stored, and its directory goes', async () => {
  engine = await startEngine({ workers: 3 });
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
  await engine.killAll();

  engine.spawn({ WORKERS: '1' });
  await engine.ready();
  await eventually(async () => {
    const { n } = await engine.api.readSeries(device.id, ['n'], { startTs: 1000, endTs: 1000 + count });
    return n?.length === count ? true : undefined;
  }, 20_000);
  const journals = join(engine.dataDir, 'journal');
  await eventually(async () => (readdirSync(journals).length === 1 ? true : undefined), 10_000);
  expect(readdirSync(journals)).toEqual(['worker-0']);
});
