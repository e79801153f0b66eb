/** New segments on a disk that takes a moment for each step. */

import { mkdtempSync, readdirSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import { afterEach, beforeEach, expect, test, vi } from 'vitest';
import { silentLog as log } from '../../test/harness/silent-log.ts';
import { systemClock } from '../base/clock.ts';
import { type Disk, realDisk } from './disk.ts';
import { SegmentPool } from './pool.ts';

/** Eight steps of zeros. */
const segmentBytes = 2 * 1024 * 1024;
const slowDisk: Disk = {
  ...realDisk,
  async open(path, mode) {
    const file = await realDisk.open(path, mode);
    const { write } = file;
    file.write = async (parts, position) => {
      await sleep(2);
      written.push(parts.reduce((bytes, part) => bytes + part.length, 0));
      await write.call(file, parts, position);
    };
    return file;
  },
};
let dir = '';
/** Ends of the pauses between steps. */
let pauses: (() => void)[] = [];
/** Bytes of each write. */
let written: number[] = [];

beforeEach(() => {
  dir = mkdtempSync(join(tmpdir(), 'pool-'));
  pauses = [];
  written = [];
});

afterEach(() => rmSync(dir, { recursive: true }));

function newPool(): SegmentPool {
  const pause = (_: number, signal?: AbortSignal) =>
    new Promise<void>((resolve) => {
      pauses.push(resolve);
      signal?.addEventListener('abort', () => resolve());
    });
  const deps = { disk: slowDisk, dir, log, clock: systemClock, epoch: 1, segmentBytes };
  return new SegmentPool({ ...deps, freeBytesMin: 0, sparesMax: 4, durable: 'sync', scheduler: { sleep: pause } });
}

const segments = () => readdirSync(dir).filter((name) => name.endsWith('.seg')).length;

async function paused(count: number): Promise<void> {
  await vi.waitFor(() => expect(pauses.length).toBe(count), 20_000);
}

test('the next segment is made in steps with pauses while the writer has used little of its own', async () => {
  const pool = newPool();
  await pool.take();
  for (let step = 1; step <= 8; step += 1) {
    await paused(step);
    expect(segments()).toBe(1);
    pauses.at(-1)!();
  }
  await vi.waitFor(() => expect(segments()).toBe(2), 20_000);
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
  await vi.waitFor(() => expect(segments()).toBe(2), 20_000);
  expect(pauses.length).toBe(2);
  await pool.close();
});

test('the next segment catches up with a fast writer in larger steps', async () => {
  const pool = newPool();
  const { segment } = await pool.take();
  await paused(1);
  written = [];
  segment.end = segmentBytes;
  pauses[0]!();
  await vi.waitFor(() => expect(segments()).toBe(2), 20_000);
  // The rest of the zeros, and the header.
  expect(written.map((bytes) => bytes / 1024)).toEqual([7 * 256, 8]);
  await pool.close();
});

test('a writer that needs the next segment ends the pause', async () => {
  const pool = newPool();
  await pool.take();
  await paused(1);
  await pool.take();
  // The pause before the first step of the third segment.
  await paused(2);
  await pool.close();
});

test('no writer waits for the pause after a step that took long', async () => {
  // The next step takes so long on this clock.
  let stallMs = 0;
  let now = 0;
  const disk: Disk = {
    ...realDisk,
    async open(path, mode) {
      const file = await realDisk.open(path, mode);
      const { write } = file;
      file.write = async (parts, position) => {
        await write.call(file, parts, position);
        now += stallMs;
        stallMs = 0;
      };
      return file;
    },
  };
  /** The pauses that were begun. Only a signal ends one. */
  const begun: number[] = [];
  const sleep = (ms: number, signal?: AbortSignal) => {
    begun.push(ms);
    return new Promise<void>((resolve) => signal?.addEventListener('abort', () => resolve()));
  };
  const clock = { ...systemClock, now: () => now, monotonic: () => now };
  const deps = { disk, dir, log, clock, epoch: 1, segmentBytes, freeBytesMin: 0, sparesMax: 4 };
  const pool = new SegmentPool({ ...deps, durable: 'sync', scheduler: { sleep } });
  await pool.take();
  stallMs = 1_000;
  await vi.waitFor(() => expect(begun).toHaveLength(1), 20_000);
  expect(begun[0]).toBeGreaterThan(1_000);
  await pool.take();
  await pool.close();
}, 20_000);
