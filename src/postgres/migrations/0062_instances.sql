-- The hosts of this installation: one row for each data directory whose host runs, or ran until a moment ago. The epoch is new
-- at each start and rises over all hosts. A clean stop removes the row; the row of a host that died ages out.
create sequence instance_epoch;
create table instance (
  id uuid primary key,
  epoch bigint not null,
  name text not null,
  address text not null,
  zone text not null,
  workers integer not null,
  version text not null,
  schema_version integer not null,
  settings jsonb not null,
  started_at timestamptz not null default clock_timestamp(),
  heartbeat_at timestamptz not null default clock_timestamp()
);
