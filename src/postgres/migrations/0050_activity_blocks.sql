-- When devices were active, without a row version for each device that goes on sending. A block holds the last activity
-- of 512 devices with consecutive numbers, 6 bytes each (milliseconds since 1970, 0 = never), and is written as a whole.
-- It stays in its page, beside room for the next version: at a million devices half the work and space of TOAST.
create table activity_block (
  -- device.number / 512
  block bigint primary key,
  -- A writer replaces the version that it has read.
  version bigint not null,
  times bytea not null
) with (fillfactor = 40, toast_tuple_target = 8160);
alter table activity_block alter column times set storage main;

create function activity_time(times bytea, device bigint) returns bigint immutable language sql as $$
  select ('x0000' || encode(substring(times from (device % 512)::int * 6 + 1 for 6), 'hex'))::bit(64)::bigint
$$;

-- A row changes when its device becomes active or inactive, and with sessions. `woke_time` is the activity that made the
-- device active, 0 = only connected or disconnected so far; later activity is in the blocks.
alter table device_activity rename column last_activity_time to woke_time;

-- What the service says about the activity of devices, as rows of `attribute` in scope 3.
create view activity_attribute as
select a.device, f.key, f.kind::smallint as kind, f.value::text as value, f.time as last_update_ts
  from device_activity a left join activity_block b on b.block = a.device / 512,
       lateral (select case when a.woke_time > 0 then greatest(a.woke_time, activity_time(b.times, a.device)) end) as l (time),
       lateral (values
         ('active' collate "C", 1, a.active::int::bigint,
          case when a.woke_time > 0 and not a.active then coalesce(a.inactivity_alarm_time, 0) else nullif(a.woke_time, 0) end),
         ('lastActivityTime', 2, l.time, l.time),
         ('inactivityAlarmTime', 2, a.inactivity_alarm_time, a.inactivity_alarm_time),
         ('lastConnectTime', 2, a.last_connect_time, a.last_connect_time),
         ('lastDisconnectTime', 2, a.last_disconnect_time, a.last_disconnect_time)) as f (key, kind, value, time)
 where f.time is not null;

-- These rows were copies of `device_activity`.
delete from attribute t using device_activity a
 where t.device = a.device and t.scope = 3
   and (t.key in ('active', 'lastActivityTime') and a.woke_time > 0
     or t.key = 'inactivityAlarmTime' and a.inactivity_alarm_time is not null
     or t.key = 'lastConnectTime' and a.last_connect_time is not null
     or t.key = 'lastDisconnectTime' and a.last_disconnect_time is not null);

-- Reports may name these attributes; the blocks are compared with what was copied of them (`activity_copied`).
create function tell_activity() returns trigger language plpgsql as $$
begin
  if not exists (select from report_key where scope = 3) then
    return null;
  end if;
  insert into device_outbox (device, scope, key)
  select device, scope, key from changed, report_key
   where scope = 3
     and key in ('active', 'lastActivityTime', 'inactivityAlarmTime', 'lastConnectTime', 'lastDisconnectTime');
  return null;
end $$;

create trigger activity_inserted_outbox after insert on device_activity
  referencing new table as changed for each statement execute function tell_activity();
create trigger activity_updated_outbox after update on device_activity
  referencing new table as changed for each statement execute function tell_activity();
create trigger activity_deleted_outbox after delete on device_activity
  referencing old table as changed for each statement execute function tell_activity();

create table activity_copied (
  block bigint primary key,
  times bytea not null
) with (fillfactor = 40, toast_tuple_target = 8160);
alter table activity_copied alter column times set storage main;

-- Workers that keep activity in memory. All that such a worker received before `settled_time` is stored.
create table activity_writer (
  id uuid primary key,
  settled_time bigint not null,
  seen_time bigint not null
) with (fillfactor = 50);

-- One row. Its lock makes one checker of all hosts at a time.
create table activity_check (
  single boolean primary key default true check (single),
  checked_time bigint not null,
  -- Silence counts from this time on, because what came before it may not be stored.
  floor_time bigint not null,
  -- The last number in `activity_ended`; numbers have no gaps.
  ended_number bigint not null
) with (fillfactor = 50);
insert into activity_check (checked_time, floor_time, ended_number) values (0, 0, 0);

-- Devices that became inactive, for the workers that know them as active. The newest rows are kept.
create table activity_ended (
  number bigint primary key,
  -- The devices were silent up to this time.
  judged_time bigint not null,
  devices bigint[] not null
);
