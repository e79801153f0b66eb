-- Attributes: the present value of a key of a device, in three scopes that do not know each other.

create table attribute (
  -- device.number
  device bigint not null references device (number) on delete cascade,
  -- 1 client, 2 shared, 3 server
  scope smallint not null,
  key text collate "C" not null,
  -- As in ClickHouse: 1 boolean, 2 long, 3 double, 4 string, 5 json. 0 = the key was deleted (shared scope only): kept
  -- until the device has heard of it.
  kind smallint not null,
  -- The value as text; what was written comes back digit for digit and member by member.
  value text not null,
  last_update_ts bigint not null,
  -- Shared scope: the version of the device's shared attributes that this write made.
  version bigint not null default 0,
  primary key (device, scope, key)
) with (fillfactor = 70);

-- Shared attributes of a device as a whole: how far they are, and how far the device has been told.
create table attribute_head (
  device bigint primary key references device (number) on delete cascade,
  version bigint not null default 0,
  -- The transaction that made the version: readers ask for those that were not settled at their last look.
  transaction_id xid8 not null default pg_current_xact_id(),
  -- Null until the device polls or subscribes for the first time. Changes and deletions are told apart.
  changes_seen bigint,
  deletions_seen bigint,
  -- The last answer, until the next poll shows that it arrived.
  changes_offered bigint,
  deletions_offered bigint,
  offered_time bigint not null default 0,
  -- The offered answer is one that was told before: it is not told a third time.
  repeated boolean not null default false
) with (fillfactor = 70);
create index attribute_head_by_transaction on attribute_head (transaction_id);
