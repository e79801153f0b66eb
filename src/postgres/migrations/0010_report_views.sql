-- Saved views of the report API, and the attributes that they name.

create table report_view (
  id uuid primary key,
  created_time bigint not null,
  tenant_id uuid not null references tenant (id),
  -- whose users may see it besides the administrators; null = those of every customer
  customer_id uuid references customer (id) on delete cascade,
  name text not null,
  -- fields, scope, filters: as the API has them
  definition json not null,
  version bigint not null default 1
);
create index report_view_by_tenant on report_view (tenant_id, id);

-- Attributes that are kept in ClickHouse beside the telemetry, because some report asked for them.
create table report_key (
  -- as in `attribute`
  scope smallint not null,
  key text collate "C" not null,
  created_time bigint not null,
  -- All values of the key were copied: once, and once more when every statement had ended that may have begun before
  -- the key was wanted and so told nobody of what it wrote.
  filled_time bigint,
  settled boolean not null default false,
  primary key (scope, key)
);
