-- What the devices of a tenant sent in a calendar month (UTC), over all workers and hosts.
create table tenant_usage (
  tenant_id uuid not null references tenant (id) on delete cascade,
  -- The first day of the month.
  month date not null,
  messages bigint not null,
  points bigint not null,
  primary key (tenant_id, month)
);
