/**
 * SQL of the blocks, which workers of all hosts write. A writer reads a version, merges its own times and replaces only
 * that version, so no writer undoes another one, and no lock lasts longer than a statement.
 */
import { assert } from '../base/errors.ts';
import type { Postgres, Queries } from '../postgres/client.ts';
import { blockBytes } from './blocks.ts';

interface StoredBlock {
  block: number;
  /** 0 = not stored yet. */
  version: number;
  times: Buffer;
}

const numberBytes = 8;
const rowBytes = 2 * numberBytes + blockBytes;
const columns = `string_agg(int8send(block) || int8send(version) || times, '' order by block)`;

/** Returns a block for each of the numbers, in their order. */
export async function readBlocks(postgres: Postgres, blocks: number[]): Promise<StoredBlock[]> {
  assert(blocks.every(Number.isSafeInteger), 'the numbers of blocks become part of a statement');
  const bytes = await postgres.bytes(`select ${columns} from activity_block where block in (${blocks.join(',')})`);
  const stored = new Map(blocksIn(bytes).map((found) => [found.block, found]));
  return blocks.map((block) => stored.get(block) ?? { block, version: 0, times: Buffer.alloc(blockBytes) });
}

/** Returns the stored blocks from `first` on, up to `count` numbers further. */
export async function readBlocksFrom(postgres: Postgres, first: number, count: number): Promise<StoredBlock[]> {
  assert(Number.isSafeInteger(first) && Number.isSafeInteger(count), 'the numbers become part of a statement');
  const where = `block >= ${first} and block < ${first + count}`;
  return blocksIn(await postgres.bytes(`select ${columns} from activity_block where ${where}`));
}

function blocksIn(bytes: Buffer | undefined): StoredBlock[] {
  const blocks: StoredBlock[] = [];
  for (let at = 0; at < (bytes?.length ?? 0); at += rowBytes) {
    blocks.push({
      block: Number(bytes!.readBigInt64BE(at)),
      version: Number(bytes!.readBigInt64BE(at + numberBytes)),
      times: bytes!.subarray(at + 2 * numberBytes, at + rowBytes),
    });
  }
  return blocks;
}

/** Returns the blocks that were replaced; the other blocks have a newer version of another writer. */
export async function replaceBlocks(queries: Queries, blocks: StoredBlock[]): Promise<Set<number>> {
  const rows = await queries.query<{ block: number }>(
    `insert into activity_block as b (block, version, times)
     select g.block, g.version + 1, substring($3::bytea from ((g.place - 1) * ${blockBytes} + 1)::int for ${blockBytes})
       from unnest($1::bigint[], $2::bigint[]) with ordinality as g (block, version, place) order by g.block
     on conflict (block) do update set version = excluded.version, times = excluded.times
      where b.version = excluded.version - 1
     returning block`,
    [
      blocks.map(({ block }) => block),
      blocks.map(({ version }) => version),
      Buffer.concat(blocks.map(({ times }) => times)),
    ],
  );
  return new Set(rows.map(({ block }) => block));
}
