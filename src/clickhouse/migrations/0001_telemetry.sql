-- One row is one data point. Written many times, it is still one: the newest version of (device, key, ts) counts.
--
-- version = order - ts * 2^20 + 2^63, where order is the unique number of the write. Days from 2020 to 2039 are
-- partitions of their own; clocks that tell anything else share partition 0. Codecs by measurement: bytes a row of
-- random walks with 1 and 2 decimals: ZSTD 1.5 and 1.9, Delta 1.3 and 1.3, Gorilla 2.0 and 3.6; of version: ZSTD 1.5,
-- T64 by bits 0.9.
CREATE TABLE IF NOT EXISTS {database}.telemetry{local} {on_cluster}
(
    device UInt64 CODEC(ZSTD),
    key LowCardinality(String),
    ts Int64 CODEC(Delta, ZSTD),
    -- 1 boolean, 2 long, 3 double, 4 string, 5 json
    kind UInt8 CODEC(ZSTD),
    num Float64 CODEC(Delta, ZSTD),
    int Int64 CODEC(Delta, ZSTD),
    text String CODEC(ZSTD),
    version UInt64 CODEC(T64('bit'), ZSTD)
)
ENGINE = {replacing}(version)
PARTITION BY if(ts >= 1577836800000 AND ts < 2208988800000, toYYYYMMDD(toDateTime(intDiv(ts, 1000), 'UTC')), 0)
ORDER BY (device, key, ts)
SETTINGS
    -- A journal segment is given up when the insert is answered: then the part must be on the disk.
    fsync_after_insert = 1,
    fsync_part_directory = 1,
    -- Merged parts are not synced; their sources outlive the page cache.
    old_parts_lifetime = 480,
    -- A token is recorded before its part is in place: a crash in between would lose the retry.
    {deduplication_off}
    -- A closed day becomes one part.
    min_age_to_force_merge_seconds = 3600,
    min_age_to_force_merge_on_partition_only = 1;

-- What a device said last, by key: greatest ts, then the later write.
CREATE TABLE IF NOT EXISTS {database}.latest{local} {on_cluster}
(
    device UInt64 CODEC(ZSTD),
    key LowCardinality(String),
    ts Int64 CODEC(ZSTD),
    kind UInt8 CODEC(ZSTD),
    num Float64 CODEC(ZSTD),
    int Int64 CODEC(ZSTD),
    text String CODEC(ZSTD),
    version UInt64 CODEC(ZSTD),
    -- Orders by ts and then by version: one number, because the engine compares one column.
    rank UInt128 MATERIALIZED bitShiftLeft(toUInt128(toInt128(ts) + 9223372036854775808), 64) + version CODEC(ZSTD)
)
ENGINE = {replacing}(rank)
ORDER BY (device, key)
SETTINGS
    -- Reads ask for one device: small granules.
    index_granularity = 256,
    fsync_after_insert = 1,
    fsync_part_directory = 1,
    {deduplication_off}
    old_parts_lifetime = 480;

-- With a cluster: shards are written locally by a hash of the device, and read through these.
{cluster_only}
CREATE TABLE IF NOT EXISTS {database}.telemetry {on_cluster} AS {database}.telemetry_local
ENGINE = Distributed('{cluster}', '{database}', 'telemetry_local', cityHash64(device));

{cluster_only}
CREATE TABLE IF NOT EXISTS {database}.latest {on_cluster} AS {database}.latest_local
ENGINE = Distributed('{cluster}', '{database}', 'latest_local', cityHash64(device));
