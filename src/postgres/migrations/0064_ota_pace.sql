-- The pace at which devices are notified of the packages of their profile, from `otaRollout` of the profile data.
alter table device_profile
  -- null = without a limit
  add column ota_per_minute integer,
  add column ota_percent smallint not null default 100,
  add column ota_paused boolean not null default false;

-- Of a device that has the packages of its profile: the profile, and a place from 0 to 99 that the device has for these
-- packages. A rollout to 10 percent notifies the places 0 to 9.
alter table ota_rollout add column paced_profile_id uuid, add column place smallint;
create index ota_rollout_paced on ota_rollout (paced_profile_id, place, id) where paced_profile_id is not null;
create index ota_rollout_free on ota_rollout (id) where device_id is not null and paced_profile_id is null;

-- Until when the notifications of a profile are taken, by the clock of the database, at its pace.
create table ota_pace (
  device_profile_id uuid primary key references device_profile (id) on delete cascade,
  taken_until timestamptz not null
);
