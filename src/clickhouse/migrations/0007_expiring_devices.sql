-- The devices whose profile keeps telemetry for fewer days than the installation: written from PostgreSQL before each
-- delete of expired points (`erase/expired-points.ts`), and read by that delete alone. `round` names the delete.
--
-- compatible from: 4
CREATE TABLE IF NOT EXISTS {database}.expiring_devices{local} {on_cluster}
(
    round UInt64,
    days UInt32,
    device UInt64 CODEC(Delta, ZSTD)
)
ENGINE = {replacing}
ORDER BY (round, days, device)
SETTINGS {deduplication_off} fsync_after_insert = 0;

{cluster_only}
CREATE TABLE IF NOT EXISTS {database}.expiring_devices {on_cluster} AS {database}.expiring_devices_local
ENGINE = Distributed('{cluster}', '{database}', 'expiring_devices_local', cityHash64(device));
