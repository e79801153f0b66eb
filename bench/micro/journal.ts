/**
 * The journal alone on a real disk: appends one after another (what one worker can commit at most), with and without a
 * shipper that reads everything back beside them, and the cost of opening a directory with a backlog.
 */
import type { Log } from '../../src/base/log.ts';
import type { Journal } from '../../src/journal/journal.ts';
import { openJournal } from '../../src/journal/open-journal.ts';
import { ownDirectory } from '../own-directory.ts';
import { measuring } from '../report.ts';

interface JournalFigure {
  frameBytes: number;
  shipping: boolean;
  commitsPerSecond: number;
  megabytesPerSecond: number;
  p50Ms: number;
  p99Ms: number;
  maxMs: number;
  cpuMicrosPerCommit: number;
}

// That an earlier owner may still be alive is no fault of a directory that is opened again.
const log: Log = { debug() {}, info() {}, warn() {}, error: console.error };
const segmentBytes = 64 * 1024 * 1024;
const partBytes = 16 * 1024;

/** The time of one measurement. */
const seconds = 2;

export async function benchJournal(): Promise<JournalFigure[]> {
  const figures: JournalFigure[] = [];
  measuring('journal', () => figures);
  for (const frameBytes of [4 * 1024, 64 * 1024, 1024 * 1024]) {
    for (const shipping of [false, true]) {
      const directory = ownDirectory('journal-bench-');
      const journal = await openJournal({ dir: directory.path, log, segmentBytes });
      figures.push(await measure(journal, frameBytes, shipping));
      await journal.close();
      directory.remove();
    }
  }
  return figures;
}

async function measure(journal: Journal, frameBytes: number, shipping: boolean): Promise<JournalFigure> {
  const parts = Array.from({ length: Math.ceil(frameBytes / partBytes) }, () =>
    Buffer.alloc(Math.min(frameBytes, partBytes), 42),
  );
  let order = BigInt(Date.now()) << 20n;
  const append = () => journal.append([{ lane: 0, order: (order += 1n), rows: frameBytes >> 4, parts }]);
  for (let i = 0; i < 20; i += 1) await append();
  let running = true;
  const shipper = (async () => {
    while (running && shipping) {
      const unit = await journal.next(0, { rowsMax: 400_000, bytesMax: 8 * 1024 * 1024 });
      if (unit) await journal.confirm(unit);
      else await new Promise((resolve) => setTimeout(resolve, 20));
    }
  })();
  const latencies: number[] = [];
  const cpu = process.cpuUsage();
  const start = performance.now();
  // Without a shipper the backlog only grows, so its size is bounded.
  for (let bytes = 0; performance.now() - start < seconds * 1000 && (shipping || bytes < 2e9); bytes += frameBytes) {
    const from = performance.now();
    await append();
    latencies.push(performance.now() - from);
  }
  const elapsed = (performance.now() - start) / 1000;
  const { user, system } = process.cpuUsage(cpu);
  running = false;
  await shipper;
  latencies.sort((a, b) => a - b);
  const at = (share: number) => latencies[Math.floor((latencies.length - 1) * share)]!;
  return {
    frameBytes,
    shipping,
    commitsPerSecond: Math.round(latencies.length / elapsed),
    megabytesPerSecond: Math.round((latencies.length * frameBytes) / elapsed / 1e6),
    p50Ms: at(0.5),
    p99Ms: at(0.99),
    maxMs: at(1),
    cpuMicrosPerCommit: Math.round((user + system) / latencies.length),
  };
}

/** Measures how long a journal with so many unshipped bytes takes to open, and how fast these bytes are read. */
export async function benchBacklog(bytes: number): Promise<{ openMs: number; readMegabytesPerSecond: number }> {
  const directory = ownDirectory('journal-bench-');
  const dir = directory.path;
  const payload = Buffer.alloc(256 * 1024, 7);
  const first = await openJournal({ dir, log, segmentBytes });
  let order = 1n;
  for (let done = 0; done < bytes; done += payload.length) {
    await first.append([{ lane: 0, order: (order += 1n), rows: 4096, parts: [payload] }]);
  }
  await first.close();
  const start = performance.now();
  const second = await openJournal({ dir, log, segmentBytes });
  const openMs = performance.now() - start;
  const from = performance.now();
  const limits = { rowsMax: 100_000, bytesMax: 8 * 1024 * 1024 };
  for (let unit = await second.next(0, limits); unit; unit = await second.next(0, limits)) await second.confirm(unit);
  const readMegabytesPerSecond = Math.round(bytes / 1e3 / (performance.now() - from));
  await second.close();
  directory.remove();
  return { openMs: Math.round(openMs), readMegabytesPerSecond };
}
