-- API keys, the way back for a user who forgot the password, and deletes of time series.

-- Of a key only a hash is kept: a thief of this table cannot sign in. It dies with its user.
create table api_key (
  id uuid primary key,
  created_time bigint not null,
  -- null: of a system administrator
  tenant_id uuid references tenant (id) on delete cascade,
  user_id uuid not null references user_account (id) on delete cascade,
  value_sha256 bytea not null,
  description text not null,
  enabled boolean not null,
  -- 0 = never
  expiration_time bigint not null,
  constraint api_key_value_unique unique (value_sha256)
);
create index api_key_by_user on api_key (user_id, id);
create index api_key_by_expiration on api_key (expiration_time) where expiration_time > 0;

-- Whoever shows the token may choose a new password until then; of the token only a hash is kept.
alter table user_account
  add column reset_token_sha256 bytea,
  add column reset_token_expires_time bigint;
create unique index user_account_reset_token_unique on user_account (reset_token_sha256)
  where reset_token_sha256 is not null;

-- What a delete does to the latest value when that lies in the range: delete it, keep it, or put the newest value that
-- remains into its place.
alter table tombstones
  add column latest text not null default 'delete' check (latest in ('delete', 'keep', 'rewrite'));
