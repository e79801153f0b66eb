/**
 * Filters rows that are sent to ClickHouse again, long after they were accepted: rows that were deleted meanwhile are
 * left out. Called by the commands `quarantine` and `journal`, beside a running instance.
 */
import type { Queries } from '../postgres/client.ts';
import { blocksOf, readBlock, splitBlock } from '../telemetry/read-block.ts';
import { erasesRow, readTombstonesOf } from './tombstone-store.ts';

interface Replayed {
  /** The blocks without the rows that a delete covers; empty when no row remains. */
  body: Buffer;
  dropped: number;
  devices: number[];
  /** The tombstones that were applied to the rows. */
  tombstones: number[];
}

/** `body`: concatenated blocks. */
export async function withoutErased(queries: Queries, body: Buffer): Promise<Replayed> {
  const devices = [...new Set(readBlock(body).map(({ device }) => device))];
  const tombstones = await readTombstonesOf(queries, devices);
  const known = { devices, tombstones: tombstones.map(({ id }) => id) };
  if (tombstones.length === 0) return { body, dropped: 0, ...known };
  const kept: Uint8Array[] = [];
  let dropped = 0;
  for (const block of blocksOf(body)) {
    const rows = readBlock(block);
    const isKept = rows.map((row) => !tombstones.some((tombstone) => erasesRow(tombstone, row)));
    dropped += isKept.filter((keep) => !keep).length;
    for (const [from, to] of runsOf(isKept)) kept.push(splitBlock(block, from, to));
  }
  return { body: Buffer.concat(kept), dropped, ...known };
}

/** Returns ranges [from, to) of rows that are kept. */
function runsOf(isKept: boolean[]): [number, number][] {
  const runs: [number, number][] = [];
  for (let row = 0; row < isKept.length; row += 1) {
    if (!isKept[row]) continue;
    const open = runs.at(-1);
    if (open && open[1] === row) open[1] = row + 1;
    else runs.push([row, row + 1]);
  }
  return runs;
}
