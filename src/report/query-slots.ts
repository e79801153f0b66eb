/**
 * Limits the number of threads that query ClickHouse at once. The permits are cells of shared memory that hold the
 * ticket of a report, 0 = free; all threads of the pool share them. One further cell is reserved for a tenant that runs
 * no report. A thread may die at any moment: the pool that started its report then frees the cell.
 */
import { setTimeout as sleep } from 'node:timers/promises';

const retryMs = 5;

export function createPermits(count: number): SharedArrayBuffer {
  return new SharedArrayBuffer((count + 1) * Int32Array.BYTES_PER_ELEMENT);
}

/** Returns false when no cell is free until `deadline` (monotonic). `isFirst`: the tenant runs no other report. */
export async function takePermit(
  permits: SharedArrayBuffer,
  ticket: number,
  deadline: number,
  isFirst: boolean,
): Promise<boolean> {
  const cells = new Int32Array(permits);
  const count = isFirst ? cells.length : cells.length - 1;
  for (;;) {
    for (let n = 0; n < count; n += 1) {
      if (Atomics.compareExchange(cells, n, 0, ticket) === 0) return true;
    }
    if (performance.now() >= deadline) return false;
    await sleep(retryMs);
  }
}

export function givePermitBack(permits: SharedArrayBuffer, ticket: number): void {
  const cells = new Int32Array(permits);
  for (let n = 0; n < cells.length; n += 1) Atomics.compareExchange(cells, n, ticket, 0);
}
