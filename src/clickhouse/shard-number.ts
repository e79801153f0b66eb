/**
 * Each of several ClickHouse servers keeps its shard number in the comment of its table `telemetry`. So addresses that
 * are named in another order are noticed at the start: reads would find nothing, and rows would go to a wrong server.
 */
import { StartError } from '../base/errors.ts';
import type { ClickHouse } from './client.ts';

const commentOfTable = `SELECT comment FROM system.tables WHERE database = currentDatabase() AND name = 'telemetry'`;
const comment = /^Millrace, shard (\d+)$/;

interface ShardNumber {
  shard: number;
  title: string;
  /** False: a number that is missing is not written, because this host makes no changes to schemas. */
  apply: boolean;
}

/** Writes the number when the server has none. Throws a StartError when the server is another shard. */
export async function checkShardNumber(clickhouse: ClickHouse, { shard, title, apply }: ShardNumber): Promise<void> {
  const [row] = await clickhouse.rows<{ comment: string }>(commentOfTable);
  const [, number] = comment.exec(row?.comment ?? '') ?? [];
  if (number === undefined) {
    if (apply) await clickhouse.exec(`ALTER TABLE telemetry MODIFY COMMENT 'Millrace, shard ${shard}'`);
  } else if (Number(number) !== shard) {
    throw new StartError(
      `${title} is shard ${number} and not ${shard}: CLICKHOUSE_URL and CLICKHOUSE_SHARDS must name the servers in the ` +
        'same order as before.',
    );
  }
}
