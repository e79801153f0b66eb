-- Commands to devices. Times are epoch milliseconds. JSON is kept as the text it came as, so no number loses a digit.

-- The next number of each device's commands. Taken for every command, so a number is never used twice while an answer
-- to the first could still come, whatever worker, host or start: it wraps after 2^31.
create table rpc_sequence (
  device bigint primary key references device (number) on delete cascade,
  next bigint not null
);

-- Commands that outlive a restart.
create table rpc (
  id uuid primary key,
  created_time bigint not null,
  tenant_id uuid not null references tenant (id),
  device_id uuid not null references device (id) on delete cascade,
  device bigint not null,
  -- what the device sees
  number integer not null,
  method text not null,
  params text not null,
  oneway boolean not null,
  expiration_time bigint not null,
  -- as asked for; null = the setting
  retries integer,
  additional_info text,
  status text not null default 'QUEUED' check (
    status in ('QUEUED', 'SENT', 'DELIVERED', 'SUCCESSFUL', 'TIMEOUT', 'EXPIRED', 'FAILED')
  ),
  response text,
  -- deliveries that nobody confirmed
  attempts integer not null default 0,
  -- false once the status is final
  open boolean not null default true,
  -- the worker that delivers it, until its lease runs out
  owner uuid,
  leased_until timestamptz not null default '-infinity'
);
create index rpc_by_device on rpc (device_id, id);
create index rpc_open on rpc (leased_until) where open;
create index rpc_open_by_device on rpc (device, number) where open;
create index rpc_closed on rpc (created_time) where not open;
