-- What reports group and filter telemetry by. A copy of what PostgreSQL holds, kept up by an outbox: the newest version
-- of a row counts.
CREATE TABLE IF NOT EXISTS {database}.device_metadata{local} {on_cluster}
(
    device UInt64 CODEC(Delta, ZSTD),
    tenant UUID,
    id UUID,
    name String CODEC(ZSTD),
    label String CODEC(ZSTD),
    -- names, not ids: what a report shows
    profile LowCardinality(String),
    owner LowCardinality(String),
    deleted UInt8,
    version UInt64 CODEC(ZSTD)
)
ENGINE = {replacing}(version)
ORDER BY (tenant, device)
SETTINGS {deduplication_off} index_granularity = 1024, fsync_after_insert = 1, fsync_part_directory = 1;

-- Attributes that some report asked for. Numbers in one form (42, never 42.0), so that equal ones are one group.
CREATE TABLE IF NOT EXISTS {database}.device_attribute{local} {on_cluster}
(
    -- as in PostgreSQL: 1 client, 2 shared, 3 server
    scope UInt8,
    key LowCardinality(String),
    device UInt64 CODEC(Delta, ZSTD),
    -- 1 boolean, 2 long, 3 double, 4 string, 5 json
    kind UInt8,
    text String CODEC(ZSTD),
    deleted UInt8,
    version UInt64 CODEC(ZSTD)
)
ENGINE = {replacing}(version)
ORDER BY (scope, key, device)
SETTINGS {deduplication_off} index_granularity = 1024, fsync_after_insert = 1, fsync_part_directory = 1;

{cluster_only}
CREATE TABLE IF NOT EXISTS {database}.device_metadata {on_cluster} AS {database}.device_metadata_local
ENGINE = Distributed('{cluster}', '{database}', 'device_metadata_local', cityHash64(device));

{cluster_only}
CREATE TABLE IF NOT EXISTS {database}.device_attribute {on_cluster} AS {database}.device_attribute_local
ENGINE = Distributed('{cluster}', '{database}', 'device_attribute_local', cityHash64(device));
