-- Telemetry and attributes of customers, tenants, users and device profiles. Those of devices are elsewhere and cost
-- nothing more: an entity gets a number of the sequence of devices with its first write, and no device has that number.
create table entity_number (
  number bigint primary key,
  entity_id uuid not null,
  entity_type text not null,
  tenant_id uuid not null,
  constraint entity_number_unique unique (entity_id, entity_type)
);

-- As the attributes of devices, but nothing follows them.
create table entity_attribute (
  entity bigint not null references entity_number (number) on delete cascade,
  scope smallint not null,
  key text collate "C" not null,
  kind smallint not null,
  value text not null,
  last_update_ts bigint not null,
  primary key (entity, scope, key)
);

-- The telemetry of an entity that is deleted goes as that of a device.
create function forget_series() returns trigger language plpgsql as $$
begin
  insert into tombstones (device, created_time)
    select number, (extract(epoch from clock_timestamp()) * 1000)::bigint from entity_number where entity_id = old.id;
  delete from entity_number where entity_id = old.id;
  return null;
end $$;
create trigger customer_series after delete on customer for each row execute function forget_series();
create trigger tenant_series after delete on tenant for each row execute function forget_series();
create trigger user_series after delete on user_account for each row execute function forget_series();
create trigger profile_series after delete on device_profile for each row execute function forget_series();
