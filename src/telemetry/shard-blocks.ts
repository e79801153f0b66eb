/**
 * Divides blocks by the shards of their devices, for shipping. A block whose rows are all of one shard is not copied.
 */
import { bucketCount, noShard, type ShardMap } from '../clickhouse/shards.ts';
import { deviceColumn } from './block-days.ts';
import { pickBlocks } from './read-block.ts';

/**
 * Returns the rows of the block by shard; undefined for a shard without rows. While a bucket moves, its rows are in two
 * of the blocks. Bytes that are not a block go to the first shard, which refuses them.
 */
export function blocksByShard(block: Uint8Array, shards: number, map: ShardMap): (Uint8Array | undefined)[] {
  const blocks = new Array<Uint8Array | undefined>(shards).fill(undefined);
  const devices = deviceColumn(block);
  const only = devices ? onlyShard(devices, map) : 0;
  if (only !== undefined) {
    blocks[only] = block;
    return blocks;
  }
  const lists = rowsByShard(devices!, shards, map);
  const present = lists.flatMap((rows, shard) => (rows.length > 0 ? [shard] : []));
  const picked = pickedOf(
    block,
    present.map((shard) => lists[shard]!),
  );
  if (picked === undefined) blocks[0] = block;
  else for (const [i, shard] of present.entries()) blocks[shard] = picked[i];
  return blocks;
}

/** Returns undefined when the bytes are not a block, although they begin as one. */
function pickedOf(block: Uint8Array, lists: readonly Uint32Array[]): Uint8Array[] | undefined {
  try {
    return pickBlocks(block, lists);
  } catch {
    return undefined;
  }
}

/** Returns undefined when the rows are of several shards. */
function onlyShard(devices: DataView, { shardOf, movesTo }: ShardMap): number | undefined {
  let only: number | undefined;
  for (let at = 0; at < devices.byteLength; at += 8) {
    const bucket = bucketAt(devices, at);
    const shard = shardOf[bucket]!;
    if (movesTo[bucket] !== noShard || (only !== undefined && shard !== only)) return undefined;
    only = shard;
  }
  return only ?? 0;
}

function rowsByShard(devices: DataView, shards: number, { shardOf, movesTo }: ShardMap): Uint32Array[] {
  const lists = Array.from({ length: shards }, () => new Uint32Array(devices.byteLength / 8));
  const counts = new Uint32Array(shards);
  const add = (shard: number, row: number) => {
    lists[shard]![counts[shard]!] = row;
    counts[shard]! += 1;
  };
  for (let at = 0; at < devices.byteLength; at += 8) {
    const bucket = bucketAt(devices, at);
    add(shardOf[bucket]!, at / 8);
    if (movesTo[bucket] !== noShard) add(movesTo[bucket]!, at / 8);
  }
  return lists.map((rows, shard) => rows.subarray(0, counts[shard]));
}

/** The low half of a device number decides its bucket, because 2^32 is a multiple of the number of buckets. */
function bucketAt(devices: DataView, at: number): number {
  return devices.getUint32(at, true) % bucketCount;
}
