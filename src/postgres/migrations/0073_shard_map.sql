-- Which shard of ClickHouse has the telemetry of a bucket of devices (clickhouse/shards.ts): a byte for each bucket. The
-- one row exists only with CLICKHOUSE_SHARDS.

create table shard_map (
  id smallint primary key check (id = 1),
  -- Increases with each change.
  version bigint not null,
  shard_of bytea not null check (length(shard_of) = 1024),
  -- The other shard of a bucket that moves: the next one, or with is_copied the former one; 255 = none.
  moves_to bytea not null check (length(moves_to) = 1024),
  -- True: the moving buckets are copied, and reads go to their new shard.
  is_copied boolean not null default false
);

-- The earliest map on which work of the journal's process relies.
alter table journals add column map_version bigint not null default 0;
