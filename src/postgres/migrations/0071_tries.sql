-- Tries that are counted in a window, by what they are tries of (admin/tries-store.ts). The tables taken_name_tries and
-- device_claim_tries, which it replaces, stay for hosts of the version before: a later version drops them.

create table tries (
  subject text primary key,
  count integer not null,
  window_ends_time bigint not null
);
