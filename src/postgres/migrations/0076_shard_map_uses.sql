-- Processes that store rows by the map of shards (instance/stores/shard-map-follower.ts): a worker from its start, before
-- the first report of its journal, and commands, which have no journal of their own. A move of buckets waits for them.

create table shard_map_uses (
  -- Of one run of a process.
  id uuid primary key,
  host text not null,
  -- The earliest map on which work of the process relies; 0: it has read none.
  map_version bigint not null,
  heard_at timestamptz not null default clock_timestamp()
);
