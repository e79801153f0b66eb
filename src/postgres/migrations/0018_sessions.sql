-- Sessions that keep their id through renewals, API keys that know which keys made them, networks of sign-ins.

-- How often all sessions of a user were ended: a token of an earlier epoch is void, whatever the clocks say.
alter table user_account add column session_epoch bigint not null default 0;

-- Sessions that were renewed: only the newest refresh token of a session renews it once more. A row may go once that
-- token has expired.
create table session_renewal (
  session_id uuid primary key,
  user_id uuid not null,
  -- renewals so far; the refresh token in force carries this number
  renewal bigint not null,
  renewed_at timestamptz not null,
  expires_time bigint not null
);
create index session_renewal_by_user on session_renewal (user_id);
create index session_renewal_by_expiry on session_renewal (expires_time);

-- Whose sessions were signed out; of a guest the public customer. Null: by an earlier version.
alter table outdated_session add column owner_id uuid;
create index outdated_session_by_owner on outdated_session (owner_id);

-- The API keys that made this one, the oldest first; empty: a user did, signed in with a password.
alter table api_key add column made_by uuid[] not null default '{}';
create index api_key_by_maker on api_key using gin (made_by) where made_by <> '{}';

-- Networks from which a user signed in: guesses that come from elsewhere do not make the user wait.
create table sign_in_network (
  user_id uuid not null references user_account (id) on delete cascade,
  network text not null,
  last_time bigint not null,
  primary key (user_id, network)
);
