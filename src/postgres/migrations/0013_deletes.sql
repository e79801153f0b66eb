-- What is known of each tombstone: who still has rows that it covers, and whether it has been carried out.
alter table tombstones
  add column recorded_at timestamptz not null default clock_timestamp(),
  -- A journal has settled the tombstone when it has shipped all that it held when it saw tombstones_id_seq at this value
  -- or above. Null = `id`; of a deleted device: not set yet, as the device may still be sending.
  add column fence bigint,
  -- Writers whose orders were ahead of the clock, and up to which order their rows are gone (instead of order_number).
  add column ahead_writers int[] not null default '{}',
  add column ahead_orders bigint[] not null default '{}',
  -- False: the request that made the tombstone is carrying it out itself, for some seconds.
  add column handed_over boolean not null default true,
  add column applied_at timestamptz,
  -- Writers whose journals may still bring rows that it covers: it is carried out again after they have.
  add column missing int[] not null default '{}';

create index tombstones_waiting on tombstones (id) where applied_at is null;
create index tombstones_missing on tombstones using gin (missing);
create index tombstones_by_time on tombstones (recorded_at);

-- One row for each journal of each host. A host writes all of its rows in one statement, at most once a second.
create table journals (
  -- the writer id of the journal directory, which no other directory has
  writer int primary key,
  host text not null,
  -- one opening of the journal
  run text not null,
  -- highest order number that was made durable
  order_high bigint not null,
  -- everything that was accepted before tombstones_id_seq had this value is in ClickHouse
  settled bigint not null,
  -- the lowest order number of rows that wait beside the journal (suspects); null = none
  held_order bigint,
  heard_at timestamptz not null default clock_timestamp()
);

-- Work that one host at a time does.
create table lease (
  name text primary key,
  holder text not null,
  until timestamptz not null
);

-- When retention last did what it does once a day, on whichever host.
create table retention (
  name text primary key,
  done_at timestamptz not null
);
