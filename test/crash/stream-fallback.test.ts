/** `STREAM_FALLBACK=journal` on a disk that hangs, while no server of the stream can be reached. */
import { expect, test } from 'vitest';
import { systemClock } from '../../src/base/clock.ts';
import { Metrics } from '../../src/base/metrics/metrics.ts';
import { loadConfig } from '../../src/base/settings/config.ts';
import { late, live } from '../../src/journal/journal.ts';
import { StreamClient } from '../../src/stream/stream-client.ts';
import { StreamWriter } from '../../src/stream/stream-writer.ts';
import { freePort } from '../harness/ports.ts';
import { silentLog } from '../harness/silent-log.ts';
import { open } from './journal-model.ts';
import { SimDisk } from './sim-disk.ts';

test('messages are refused while the disk hangs that takes the place of the stream', async () => {
  const disk = new SimDisk();
  const journal = await open(disk);
  const url = `nats://127.0.0.1:${await freePort()}`;
  const settings = { ...loadConfig({}).stream, url, fallback: 'journal' as const };
  const client = new StreamClient(settings, silentLog, 'test', async () => {});
  await client.start();
  let aheadMs = 0;
  const clock = { now: () => systemClock.now(), monotonic: () => systemClock.monotonic() + aheadMs };
  const writer = new StreamWriter({ client, settings, clock, log: silentLog, metrics: new Metrics(), local: journal });
  let release!: () => void;
  const held = new Promise<void>((resolve) => (release = resolve));
  disk.sleep = () => held;
  disk.fault = (operation, path) => (operation === 'write' && path.endsWith('.seg') ? 1 : undefined);
  try {
    const appended = writer.append([{ lane: live, order: 1n << 40n, rows: 1, parts: [Buffer.from('a')] }]);
    expect(writer.refusal(live)).toBeUndefined();
    aheadMs = 5_000;
    expect(writer.refusal(live)?.reason).toBe('journal_slow');
    expect(writer.refusal(late)).toBeUndefined();
    release();
    await appended;
    expect(writer.refusal(live)).toBeUndefined();
    expect(journal.rowsWaiting(live)).toBe(1);
  } finally {
    release();
    writer.close();
    await client.close();
    await journal.close();
  }
});
