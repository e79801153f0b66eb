/**
 * Measures how fast the disk makes a commit durable: writes of 4 KiB one after the other, each synced as the journal
 * syncs (O_DSYNC), over a file whose blocks exist. Used by `npm run doctor`; the file is removed at the end.
 */
import { join } from 'node:path';
import type { Finding } from '../instance/host/machine.ts';
import { realDisk } from '../journal/disk.ts';

interface DiskTest {
  commitsPerSecond: number;
  medianMs: number;
  /** 99 of 100 commits are faster. */
  p99Ms: number;
}

const blockBytes = 4096;
const blocks = 1024;
const slowMedianMs = 20;
const slowP99Ms = 250;

/** Rejects with the error of the disk. */
export async function testDisk(dir: string, msMax: number): Promise<DiskTest> {
  const path = join(dir, `disk-test-${process.pid}.tmp`);
  const file = await realDisk.open(path, 'log');
  try {
    const block = Buffer.alloc(blockBytes, 0x6d);
    await file.write([Buffer.alloc(blockBytes * blocks)], 0);
    const times: number[] = [];
    const began = performance.now();
    let ended = began;
    for (let at = 0; ended - began < msMax; at = (at + 1) % blocks) {
      const before = performance.now();
      await file.write([block], at * blockBytes);
      ended = performance.now();
      times.push(ended - before);
    }
    times.sort((a, b) => a - b);
    return {
      commitsPerSecond: (times.length / (ended - began)) * 1000,
      medianMs: times[Math.floor(times.length / 2)]!,
      p99Ms: times[Math.floor(times.length * 0.99)]!,
    };
  } finally {
    await file.close();
    await realDisk.remove(path);
  }
}

export function judgeDiskTest({ commitsPerSecond, medianMs, p99Ms }: DiskTest): Finding {
  const subject = 'disk sync';
  const rate = `${Math.round(commitsPerSecond).toLocaleString('en').replaceAll(',', ' ')} commits/s`;
  const says = `half of the commits take up to ${milliseconds(medianMs)}, 99 of 100 up to ${milliseconds(p99Ms)}: ${rate}`;
  if (medianMs <= slowMedianMs && p99Ms <= slowP99Ms) return { subject, level: 'ok', says: `${says}.` };
  const advice = 'each acknowledgement waits for a commit. Use a faster disk, or find what else writes to this one';
  return { subject, level: 'warning', says: `${says}: ${advice}.` };
}

function milliseconds(ms: number): string {
  return `${ms < 10 ? ms.toFixed(ms < 0.1 ? 2 : 1) : Math.round(ms)} ms`;
}
