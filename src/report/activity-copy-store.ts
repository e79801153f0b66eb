/**
 * SQL that finds each `lastActivityTime` that changed since its last copy to ClickHouse. Blocks of activity change too
 * often for an outbox. While a report names the attribute, `MetadataCopier` compares the blocks with their copies.
 */
import { blockBytes, blockDevices, timeAt } from '../activity/blocks.ts';
import { serverScope } from '../attributes/scope.ts';
import type { Queries } from '../postgres/client.ts';
import { Kind } from '../value/typed.ts';
import type { AttributeCopy } from './outbox-store.ts';

const lastActivityKey = 'lastActivityTime';
const blocksPerPage = 32;

interface ChangedBlock {
  block: number;
  times: Buffer;
  copied: Buffer | null;
}

export async function isLastActivityKept(queries: Queries): Promise<boolean> {
  const rows = await queries.query(
    'select 1 from report_key where scope = $1 and key = $2 and filled_time is not null',
    [serverScope, lastActivityKey],
  );
  return rows.length > 0;
}

/** Calls `write` with the changed times of some blocks, and then records these times as copied. */
export async function copyLastActivity(
  queries: Queries,
  write: (copies: AttributeCopy[]) => Promise<void>,
): Promise<void> {
  for (let after = -1; ; ) {
    const changed = await queries.query<ChangedBlock>(
      `select b.block, b.times, c.times as copied
         from activity_block b left join activity_copied c on c.block = b.block
        where b.block > $1 and c.times is distinct from b.times order by b.block limit $2`,
      [after, blocksPerPage],
    );
    if (changed.length === 0) return;
    await write(changed.flatMap(changesOf));
    await queries.query(
      `insert into activity_copied (block, times)
       select g.block, substring($2::bytea from ((g.place - 1) * ${blockBytes} + 1)::int for ${blockBytes})
         from unnest($1::bigint[]) with ordinality as g (block, place)
       on conflict (block) do update set times = excluded.times`,
      [changed.map(({ block }) => block), Buffer.concat(changed.map(({ times }) => times))],
    );
    after = changed.at(-1)!.block;
  }
}

function changesOf({ block, times, copied }: ChangedBlock): AttributeCopy[] {
  const copies: AttributeCopy[] = [];
  for (let place = 0; place < blockDevices; place += 1) {
    const time = timeAt(times, place);
    if (time === 0 || (copied !== null && timeAt(copied, place) === time)) continue;
    const device = block * blockDevices + place;
    copies.push({ device, scope: serverScope, key: lastActivityKey, kind: Kind.long, text: String(time) });
  }
  return copies;
}
