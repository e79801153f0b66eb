-- Lists of devices at a million devices: how many devices a list has without a count of rows, an order for each sort,
-- and a text to search. The tables stay locked until all devices are rewritten once.
lock table device, device_count, device_count_change in access exclusive mode;

-- Devices of a tenant by profile and customer. The changes of `device_count` are of one profile and customer now.
create table device_group_count (
  tenant_id uuid not null references tenant (id) on delete cascade,
  device_profile_id uuid not null,
  -- The null uuid = of no customer.
  customer_id uuid not null,
  count bigint not null,
  primary key (tenant_id, customer_id, device_profile_id)
) with (fillfactor = 70);
create index device_group_count_empty on device_group_count (tenant_id) where count = 0;

truncate device_count, device_count_change;
alter table device_count_change
  add column device_profile_id uuid not null,
  add column customer_id uuid;

insert into device_group_count (tenant_id, device_profile_id, customer_id, count)
select tenant_id, device_profile_id, coalesce(customer_id, '00000000-0000-0000-0000-000000000000'), count(*)
  from device group by 1, 2, 3;
insert into device_count (tenant_id, count) select tenant_id, sum(count) from device_group_count group by tenant_id;

create or replace function count_devices() returns trigger language plpgsql as $$
declare
  counted uuid;
begin
  if tg_op = 'UPDATE' then
    insert into device_count_change (tenant_id, device_profile_id, customer_id, change)
    select tenant_id, device_profile_id, customer_id, sum(n)
      from (select tenant_id, device_profile_id, customer_id, -1 as n from former
            union all
            select tenant_id, device_profile_id, customer_id, 1 from changed) as moved
     group by tenant_id, device_profile_id, customer_id having sum(n) <> 0;
    if not found then
      return null;
    end if;
  else
    insert into device_count_change (tenant_id, device_profile_id, customer_id, change)
    select tenant_id, device_profile_id, customer_id, case tg_op when 'INSERT' then count(*) else -count(*) end
      from changed group by tenant_id, device_profile_id, customer_id;
  end if;
  if random() >= 0.01 then
    return null;
  end if;
  insert into device_count (tenant_id, count) select distinct tenant_id, 0 from changed on conflict do nothing;
  -- The lock of this row is the turn to add up the changes of the tenant.
  for counted in
    select tenant_id from device_count where tenant_id in (select tenant_id from changed)
     order by tenant_id for update skip locked
  loop
    with added as (
      delete from device_count_change where tenant_id = counted returning device_profile_id, customer_id, change
    ), stored as (
      insert into device_group_count as g (tenant_id, device_profile_id, customer_id, count)
      select counted, device_profile_id, coalesce(customer_id, '00000000-0000-0000-0000-000000000000'), sum(change)
        from added group by device_profile_id, customer_id having sum(change) <> 0
      on conflict (tenant_id, customer_id, device_profile_id) do update set count = g.count + excluded.count
    )
    update device_count set count = count + (select coalesce(sum(change), 0) from added) where tenant_id = counted;
    delete from device_group_count where tenant_id = counted and count = 0;
  end loop;
  return null;
end $$;

create trigger device_updated_count after update on device
  referencing old table as former new table as changed for each statement execute function count_devices();

-- How many devices a tenant has by profile and customer, at this moment. A condition on these columns reaches both
-- tables.
create view device_group as
select tenant_id, device_profile_id, customer_id, sum(count)::bigint as count
  from (select tenant_id, device_profile_id, nullif(customer_id, '00000000-0000-0000-0000-000000000000') as customer_id,
               count
          from device_group_count
        union all
        select tenant_id, device_profile_id, customer_id, change from device_count_change) as part
 group by tenant_id, device_profile_id, customer_id having sum(count) <> 0;

-- What a search looks at. No name has a line end, so a text without one is in the name or in the label.
alter table device add column search_text text collate "C" not null generated always as
  (lower(name collate any_letter_case) || coalesce(E'\n' || lower(label collate any_letter_case), '')) stored;

-- In the order of ids with all that lists select by, so that a look at all devices reads no row of the table.
drop index device_by_tenant;
create index device_by_tenant on device (tenant_id, id)
  include (number, customer_id, device_profile_id, search_text);
create index device_by_created on device (tenant_id, created_time, id);
create index device_by_label on device (tenant_id, label, id);

-- Index-only reads need pages that were vacuumed, also after devices were made.
alter table device set (
  autovacuum_vacuum_scale_factor = 0.02,
  autovacuum_vacuum_insert_scale_factor = 0.02,
  autovacuum_analyze_scale_factor = 0.05
);

-- pg_trgm is a part of PostgreSQL that a server may lack. Searches find the same without it, in more time.
do $$
begin
  create extension if not exists pg_trgm;
  create index device_search on device using gin (search_text gin_trgm_ops) with (gin_pending_list_limit = 2048);
exception when others then
  raise log 'no index for searches of devices: %', sqlerrm;
end
$$;
