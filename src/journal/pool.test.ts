/** New segments on a disk that takes a moment for each step. */
import { mkdtempSync, readdirSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import { afterEach, beforeEach, expect, test, vi } from 'vitest';
import { systemClock } from '../base/clock.ts';
import { type Disk, realDisk } from './disk.ts';
import { SegmentPool } from './pool.ts';

const log = { debug() {}, info() {}, warn() {}, error() {} };
/** Eight steps of zeros. */
const segmentBytes = 2 * 1024 * 1024;
const slowDisk: Disk = {
  ...realDisk,
  async open(path, mode) {
    const file = await realDisk.open(path, mode);
    const { write } = file;
    file.write = async (parts, position) => {
      await sleep(2);
      await write.call(file, parts, position);
    };
    return file;
  },
};
let dir = '';
/** Ends of the pauses between steps. */
let pauses: (() => void)[] = [];

beforeEach(() => {
  dir = mkdtempSync(join(tmpdir(), 'pool-'));
  pauses = [];
});

afterEach(() => rmSync(dir, { recursive: true }));

function newPool(): SegmentPool {
  const pause = () => new Promise<void>((resolve) => pauses.push(resolve));
  const deps = { disk: slowDisk, dir, log, clock: systemClock, epoch: 1, segmentBytes };
  return new SegmentPool({ ...deps, freeBytesMin: 0, sparesMax: 4, durable: 'sync', pause });
}

const segments = () => readdirSync(dir).filter((name) => name.endsWith('.seg')).length;

async function paused(count: number): Promise<void> {
  await vi.waitFor(() => expect(pauses.length).toBe(count));
}

test('the next segment is made in steps with pauses while the writer has used little of its own', async () => {
  const pool = newPool();
  await pool.take();
  for (let step = 1; step <= 8; step += 1) {
    await paused(step);
    expect(segments()).toBe(1);
    pauses.at(-1)!();
  }
  await vi.waitFor(() => expect(segments()).toBe(2));
  await pool.close();
});

test('a writer that fills its segment during the pauses finds the next one ready', async () => {
  const pool = newPool();
  const { segment } = await pool.take();
  await paused(1);
  // A quarter is used: the next segment is made without a pause up to its half.
  segment.end = segment.start + segmentBytes / 4;
  pauses[0]!();
  await paused(2);
  segment.end = segmentBytes;
  pauses[1]!();
  await vi.waitFor(() => expect(segments()).toBe(2));
  expect(pauses.length).toBe(2);
  await pool.close();
});
