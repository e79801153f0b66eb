-- The domain: who owns devices, who signs in, which token opens which device.
-- Times are epoch milliseconds (bigint) as on the wire. `version` starts at 1 and rises by 1 with each save.
-- Free-form JSON is kept as `json`, not `jsonb`: it comes back as it was written, and no escape in it can fail an insert.

-- Settings that all hosts share, secrets among them.
create table setting (
  name text primary key,
  value text not null
);

-- One number for each journal directory; part of every row's order number (14 bits).
create sequence writer_id as integer minvalue 0 maxvalue 16383 start with 0 cycle;

create table tenant (
  id uuid primary key,
  created_time bigint not null,
  title text not null,
  additional_info json,
  version bigint not null default 1
);

create table customer (
  id uuid primary key,
  created_time bigint not null,
  tenant_id uuid not null references tenant (id),
  title text not null,
  is_public boolean not null default false,
  email text,
  phone text,
  country text,
  state text,
  city text,
  address text,
  address2 text,
  zip text,
  external_id uuid,
  additional_info json,
  version bigint not null default 1,
  constraint customer_title_unique unique (tenant_id, title)
);
create index customer_by_tenant on customer (tenant_id, id);

-- A user and the credentials of the user. `tenant_id` is null for a system administrator only.
create table user_account (
  id uuid primary key,
  created_time bigint not null,
  tenant_id uuid references tenant (id),
  customer_id uuid references customer (id),
  authority text not null check (authority in ('SYS_ADMIN', 'TENANT_ADMIN', 'CUSTOMER_USER')),
  email text not null,
  first_name text,
  last_name text,
  phone text,
  additional_info json,
  version bigint not null default 1,
  -- scrypt in PHC form; null until the user is activated
  password_hash text,
  enabled boolean not null default true,
  failed_logins integer not null default 0,
  last_login_time bigint,
  -- tokens issued in an earlier second are void: password change, user disabled
  tokens_outdated_time bigint not null default 0,
  check ((authority = 'SYS_ADMIN') = (tenant_id is null)),
  check ((authority = 'CUSTOMER_USER') = (customer_id is not null))
);
create unique index user_account_email_unique on user_account (lower(email));
create index user_account_by_tenant on user_account (tenant_id, id);
create index user_account_by_customer on user_account (customer_id, id) where customer_id is not null;

-- Sessions that were signed out. A row may go once the last token of the session has expired by itself.
create table outdated_session (
  session_id uuid primary key,
  expires_time bigint not null
);
create index outdated_session_by_expiry on outdated_session (expires_time);

create table device_profile (
  id uuid primary key,
  created_time bigint not null,
  tenant_id uuid not null references tenant (id),
  name text not null,
  description text,
  image text,
  is_default boolean not null default false,
  type text not null default 'DEFAULT',
  transport_type text not null default 'DEFAULT',
  provision_type text not null default 'DISABLED',
  provision_device_key text,
  profile_data json not null,
  default_rule_chain_id uuid,
  default_dashboard_id uuid,
  default_queue_name text,
  default_edge_rule_chain_id uuid,
  firmware_id uuid,
  software_id uuid,
  external_id uuid,
  version bigint not null default 1,
  constraint device_profile_name_unique unique (tenant_id, name),
  constraint device_profile_provision_key_unique unique (provision_device_key)
);
create unique index device_profile_default_unique on device_profile (tenant_id) where is_default;
create index device_profile_by_tenant on device_profile (tenant_id, id);

create table device (
  id uuid primary key,
  -- The device in ClickHouse. Never used again after the device is deleted, so old rows cannot come back to life.
  number bigint generated always as identity,
  created_time bigint not null,
  tenant_id uuid not null references tenant (id),
  customer_id uuid references customer (id),
  device_profile_id uuid not null references device_profile (id),
  name text not null,
  label text,
  device_data json not null,
  firmware_id uuid,
  software_id uuid,
  external_id uuid,
  additional_info json,
  version bigint not null default 1,
  constraint device_number_unique unique (number),
  constraint device_name_unique unique (tenant_id, name)
);
create index device_by_tenant on device (tenant_id, id);
create index device_by_customer on device (customer_id, id) where customer_id is not null;
create index device_by_profile on device (device_profile_id, id);

create table device_credentials (
  id uuid primary key,
  created_time bigint not null,
  device_id uuid not null references device (id),
  credentials_type text not null,
  -- what a client shows: the token, the user name or a digest
  credentials_id text not null,
  credentials_value text,
  version bigint not null default 1,
  constraint device_credentials_device_unique unique (device_id),
  constraint device_credentials_id_unique unique (credentials_id)
);

-- What happened to credentials, and to devices that processes keep in memory. Every process reads on each second.
-- A reader goes by `transaction_id` and not by `id`: ids are handed out before the commit and become visible out of order.
create table credential_changes (
  id bigserial primary key,
  transaction_id xid8 not null default pg_current_xact_id(),
  credentials_id text not null,
  device_id uuid not null,
  device_number bigint not null,
  deleted boolean not null default false,
  created_time bigint not null
);
create index credential_changes_by_transaction on credential_changes (transaction_id, id);
create index credential_changes_by_time on credential_changes (created_time);

-- Ranges of telemetry that were deleted and must stay so: applied to ClickHouse, and again after a journal was replayed.
create table tombstones (
  id bigserial primary key,
  device bigint not null,
  -- null = every key
  keys text[],
  -- [start_ts, end_ts); the defaults are the ends of JavaScript's whole numbers, far beyond any ts that is stored
  start_ts bigint not null default -9007199254740991,
  end_ts bigint not null default 9007199254740991,
  -- rows with an order number up to this one are gone (63 bits: select it as text); null = every row, as the device
  -- itself was deleted
  order_number bigint,
  created_time bigint not null
);
create index tombstones_by_device on tombstones (device);
