/**
 * The tables by which a report reads several shards. Each shard gets the devices of the report that it has, and the
 * first server, which has the properties of devices, gets the points of every shard by device and date base. The tables
 * are in memory and of one report.
 */
import { bucketCount } from '../clickhouse/shards.ts';

export interface SpreadTables {
  /** Name of the table (device, profile), on every shard. */
  devices: string;
  /** Name of the table of points by device and date base, on the first server. */
  points: string;
}

/** Returns the tables of the report with this query id, which has no character that needs escaping. */
export function spreadTables(queryId: string): SpreadTables {
  const name = queryId.replaceAll('-', '_');
  return { devices: `${name}_devices`, points: `${name}_points` };
}

/** Selects the devices of `devices` (device, profile) that are in some buckets. */
export function devicesOfBuckets(devices: string): string {
  return `SELECT device, profile FROM (${devices}) WHERE device % ${bucketCount} IN {buckets:Array(UInt64)} FORMAT Native`;
}

export function createDeviceTable({ devices }: SpreadTables): string {
  return `CREATE TABLE ${devices} (device UInt64, profile String) ENGINE = Memory`;
}

export function insertReported({ devices }: SpreadTables): string {
  return `INSERT INTO ${devices} (device, profile) FORMAT Native`;
}

/** `select` gives the names and types of the columns; nothing is read. */
export function createPointTable({ points }: SpreadTables, select: string): string {
  return `CREATE TABLE ${points} ENGINE = Memory EMPTY AS ${select}`;
}

export function insertPoints({ points }: SpreadTables): string {
  return `INSERT INTO ${points} FORMAT Native`;
}

export function dropTable(name: string): string {
  return `DROP TABLE IF EXISTS ${name} SYNC`;
}

/** Finds tables of reports whose process has ended: no report lasts so many seconds. */
export const leftTables = `SELECT name FROM system.tables WHERE database = currentDatabase() AND engine = 'Memory'
  AND match(name, '^report_[0-9a-f_]{36}_(devices|points)$') AND metadata_modification_time < now() - {seconds:UInt32}`;
