/** The metrics that every process of Millrace has: memory, CPU, files, start, delay of the event loop. */
import { statSync } from 'node:fs';
import { opendir } from 'node:fs/promises';
import { monitorEventLoopDelay } from 'node:perf_hooks';
import { openFilesMax } from '../file-limit.ts';
import type { Metrics } from './metrics.ts';

/**
 * Length of a window of the delay. The page shows the larger value of this window and the one before it, so scrapes by
 * several monitors read the same value.
 */
const delayWindowMs = 30_000;
const descriptors = '/proc/self/fd';
/** Kernels before 6.2 do not count open files: the files are listed in the background, at most this often. */
const listingMs = 30_000;

export function processMetrics(metrics: Metrics, role: string): void {
  const labels = { process: role };
  const gauge = (name: string, help: string, read: () => number) => metrics.observed(name, help, read, 'sum', labels);
  const cpuSeconds = () => {
    const { user, system } = process.cpuUsage();
    return (user + system) / 1e6;
  };
  const started = Date.now() / 1000 - process.uptime();
  const filesMax = openFilesMax();
  gauge('process_resident_memory_bytes', 'Resident memory.', () => process.memoryUsage.rss());
  gauge('nodejs_heap_size_used_bytes', 'Heap in use.', () => process.memoryUsage().heapUsed);
  metrics.counted('process_cpu_seconds_total', 'CPU time.', cpuSeconds, labels);
  gauge('process_start_time_seconds', 'Start of the process, in seconds since 1970.', () => started);
  gauge('process_open_fds', 'Open files and sockets.', openFiles());
  gauge('process_max_fds', 'Files and sockets that the process may have open.', () => filesMax);
  const help = 'Event loop delay, 99th percentile of the last 30 to 60 seconds.';
  metrics.observed('nodejs_eventloop_lag_p99_seconds', help, delay(), 'max', labels);
}

/** Returns a function that reads the larger percentile of this window and the one before it. */
function delay(): () => number {
  const resolution = 10;
  const histogram = monitorEventLoopDelay({ resolution });
  histogram.enable();
  const p99 = () => {
    const seconds = Math.max(0, histogram.percentile(99) / 1e9 - resolution / 1000);
    return Number.isFinite(seconds) ? seconds : 0;
  };
  let former = 0;
  setInterval(() => {
    former = p99();
    histogram.reset();
  }, delayWindowMs).unref();
  return () => Math.max(former, p99());
}

function openFiles(): () => number {
  let listed = 0;
  let listedMs = Number.NEGATIVE_INFINITY;
  const list = async () => {
    let count = 0;
    for await (const _ of await opendir(descriptors)) count += 1;
    listed = count;
  };
  return () => {
    const counted = countedFiles();
    if (counted > 0) return counted;
    if (performance.now() - listedMs >= listingMs) {
      listedMs = performance.now();
      list().catch(() => {});
    }
    return listed;
  };
}

/** Linux 6.2 and later give the number of open files as the size of the directory; 0 = unknown. */
function countedFiles(): number {
  try {
    return statSync(descriptors).size;
  } catch {
    return 0;
  }
}
