/** The statements of retention. A day is a partition of `telemetry`; rows outside 2020 to 2039 share partition 0. */

/** Days that have rows, as numbers (20261121), oldest first. */
export function storedDaysQuery(cluster: string): string {
  const parts = cluster === '' ? 'system.parts' : `clusterAllReplicas('${cluster}', system.parts)`;
  return `SELECT DISTINCT toUInt32(partition) AS day FROM ${parts}
    WHERE database = currentDatabase() AND table = '${local('telemetry', cluster)}' AND active AND partition != '0'
    ORDER BY day`;
}

export function dropDaysStatement(cluster: string, days: number[]): string {
  return `ALTER TABLE ${holder('telemetry', cluster)} ${days.map((day) => `DROP PARTITION ${day}`).join(', ')}`;
}

export const expiredLatestQuery = 'SELECT count() AS count FROM latest WHERE ts < {limit:Int64}';

export function deleteExpiredLatestStatement(cluster: string): string {
  return `DELETE FROM ${holder('latest', cluster)} WHERE ts < {limit:Int64}`;
}

const others = '(ts < 1577836800000 OR ts >= 2208988800000)';

export const expiredOthersQuery = `SELECT count() AS count FROM telemetry WHERE ${others} AND ts < {limit:Int64}`;

/** Does not use a lightweight delete, whose rows would stay on the disk. */
export function deleteExpiredOthersStatement(cluster: string): string {
  return `ALTER TABLE ${holder('telemetry', cluster)} DELETE IN PARTITION 0 WHERE ts < {limit:Int64}`;
}

function local(table: string, cluster: string): string {
  return cluster === '' ? table : `${table}_local`;
}

function holder(table: string, cluster: string): string {
  return local(table, cluster) + (cluster === '' ? '' : ` ON CLUSTER '${cluster}'`);
}
