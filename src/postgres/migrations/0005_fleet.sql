-- Claiming, activation of users, the public customer of a tenant, contacts of a tenant.

-- What a device said about being claimed. Who knows the secret may have it until then; of the secret only a hash is kept.
create table device_claim (
  device_id uuid primary key references device (id) on delete cascade,
  secret_sha256 bytea not null,
  expires_time bigint not null
);

-- Wrong claim keys of a device inside the window that the first of them opened.
create table device_claim_tries (
  device_id uuid primary key references device (id) on delete cascade,
  wrong_keys integer not null,
  window_ends_time bigint not null
);

-- A user without a password gets one with this token.
alter table user_account
  add column activate_token text,
  add column activate_token_expires_time bigint;
create unique index user_account_activate_token_unique on user_account (activate_token) where activate_token is not null;

-- Devices of this customer are open to everybody; there is at most one.
create unique index customer_public_unique on customer (tenant_id) where is_public;

alter table tenant
  add column region text,
  add column email text,
  add column phone text,
  add column country text,
  add column state text,
  add column city text,
  add column address text,
  add column address2 text,
  add column zip text;
