/**
 * SQL of numbers that must never be assigned twice, although PostgreSQL may be restored to an earlier moment than
 * ClickHouse: the device numbers that ClickHouse uses, and the versions of rows that reports copy there.
 */
import type { ClickHouse } from '../../clickhouse/client.ts';
import type { Postgres, Queries } from '../../postgres/client.ts';

type NumberSequence = 'device' | 'copy';

const names: Record<NumberSequence, string> = {
  device: "pg_get_serial_sequence('device', 'number')",
  copy: "'device_copy_version'",
};
/** The key of an advisory lock; no other part uses this constant. */
const lockKey = 7_155_720_363;

/**
 * SQL: the last assigned number, 0 before the first. Null on a standby, because the sequence of a standby is up to 32
 * numbers ahead of that of its primary.
 */
function lastOf(sequence: NumberSequence): string {
  const last = `coalesce(pg_sequence_last_value(${names[sequence]}::regclass), 0)`;
  return `case when not pg_is_in_recovery() then ${last} end`;
}

/** SQL: the last number of a device, 0 before the first; null on a standby. */
export const lastDeviceNumber = lastOf('device');

/** Returns the last number of a device, 0 before the first and on a standby. */
export async function readLastDeviceNumber(queries: Queries): Promise<number> {
  const [row] = await queries.query<{ last: number | null }>(`select ${lastDeviceNumber} as last`);
  return row!.last ?? 0;
}

/**
 * Raises the sequence to `next` when its last number is below `known`. The lock holds for all hosts of this database: a
 * second host finds the sequence raised and changes nothing.
 */
export async function raiseNumbers(
  postgres: Postgres,
  sequence: NumberSequence,
  known: number,
  next: number,
): Promise<boolean> {
  return await postgres.transaction(async (queries) => {
    await queries.query('select pg_advisory_xact_lock($1)', [lockKey]);
    const rows = await queries.query(
      `select setval(${names[sequence]}::regclass, $2)
        where ${lastOf(sequence)} < $1`,
      [known, next],
    );
    return rows.length > 0;
  });
}

/** Returns the greatest device number that has latest values or a copy for reports, from the ends of small indexes. */
export async function greatestDevice(clickhouse: ClickHouse): Promise<number> {
  const [latest, copied] = await Promise.all([
    greatest(clickhouse, 'SELECT device AS n FROM latest ORDER BY device DESC LIMIT 1'),
    greatest(clickhouse, 'SELECT max(device) AS n FROM device_metadata'),
  ]);
  return Math.max(latest, copied);
}

/** Returns the greatest device number that has points. Reads every part: seconds for a table of ten years. */
export async function greatestDeviceOfPoints(clickhouse: ClickHouse): Promise<number> {
  return await greatest(clickhouse, 'SELECT device AS n FROM telemetry ORDER BY device DESC LIMIT 1');
}

export async function greatestCopyVersion(clickhouse: ClickHouse): Promise<number> {
  const [devices, attributes] = await Promise.all([
    greatest(clickhouse, 'SELECT max(version) AS n FROM device_metadata'),
    greatest(clickhouse, 'SELECT max(version) AS n FROM device_attribute'),
  ]);
  return Math.max(devices, attributes);
}

async function greatest(clickhouse: ClickHouse, sql: string): Promise<number> {
  const [row] = await clickhouse.rows<{ n: string }>(sql, {}, { timeoutMs: 60_000 });
  return Number(row?.n ?? 0);
}

/** Requests a new copy of every device and attribute to ClickHouse. */
export async function copyAllDevices(queries: Queries): Promise<void> {
  await queries.query('insert into device_outbox default values');
}

/**
 * Resets the transaction ids in restored rows. A dump has ids of its own cluster; in a new cluster such an id may be in
 * the future, and its row would never count as settled. '3' is below the id of every transaction.
 */
export async function settleTransactions(queries: Queries): Promise<void> {
  for (const table of ['attribute_head', 'credential_changes']) {
    await queries.query(
      `update ${table} set transaction_id = '3' where transaction_id > pg_snapshot_xmax(pg_current_snapshot())`,
    );
  }
}
