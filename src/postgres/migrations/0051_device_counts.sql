-- How many devices a tenant has: a number, and what changed since. A change is a row of its own, so transactions that make
-- or delete devices do not wait for each other. Now and then one of them adds the changes up.
create table device_count (
  tenant_id uuid primary key references tenant (id) on delete cascade,
  count bigint not null
) with (fillfactor = 50);
create table device_count_change (
  tenant_id uuid not null references tenant (id) on delete cascade,
  change bigint not null
);
create index device_count_change_by_tenant on device_count_change (tenant_id);

create function count_devices() returns trigger language plpgsql as $$
declare
  counted uuid;
begin
  insert into device_count_change (tenant_id, change)
  select tenant_id, case tg_op when 'INSERT' then count(*) else -count(*) end from changed group by tenant_id;
  if random() >= 0.01 then
    return null;
  end if;
  insert into device_count (tenant_id, count) select distinct tenant_id, 0 from changed on conflict do nothing;
  for counted in
    select tenant_id from device_count where tenant_id in (select tenant_id from changed)
     order by tenant_id for update skip locked
  loop
    with added as (delete from device_count_change where tenant_id = counted returning change)
    update device_count set count = count + (select coalesce(sum(change), 0) from added) where tenant_id = counted;
  end loop;
  return null;
end $$;

create trigger device_inserted_count after insert on device
  referencing new table as changed for each statement execute function count_devices();
create trigger device_deleted_count after delete on device
  referencing old table as changed for each statement execute function count_devices();

-- The triggers hold back other writers until the end of this transaction.
insert into device_count (tenant_id, count) select tenant_id, count(*) from device group by tenant_id;
