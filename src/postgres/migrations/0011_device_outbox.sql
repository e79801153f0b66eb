-- What changed about devices and is still to be copied to ClickHouse for reports. Rows are only added and deleted, never
-- changed, so writers do not wait for each other. A row names what to look at again, not what it became.

create table device_outbox (
  id bigint generated always as identity primary key,
  -- One device (device.number), all of a profile, all of a customer; none of the three = all devices and attributes.
  device bigint,
  device_profile_id uuid,
  customer_id uuid,
  -- Of one device: an attribute; null = the device itself.
  scope smallint,
  key text collate "C"
);

create function tell_device_rows() returns trigger language plpgsql as $$
begin
  insert into device_outbox (device) select number from changed;
  return null;
end $$;

create trigger device_inserted_outbox after insert on device
  referencing new table as changed for each statement execute function tell_device_rows();
create trigger device_deleted_outbox after delete on device
  referencing old table as changed for each statement execute function tell_device_rows();

create function tell_device() returns trigger language plpgsql as $$
begin
  insert into device_outbox (device) values (new.number);
  return null;
end $$;

create trigger device_updated_outbox after update on device for each row
  when (
    (old.name, old.label, old.customer_id, old.device_profile_id)
    is distinct from (new.name, new.label, new.customer_id, new.device_profile_id)
  )
  execute function tell_device();

create function tell_profile() returns trigger language plpgsql as $$
begin
  insert into device_outbox (device_profile_id) values (new.id);
  return null;
end $$;

create trigger device_profile_renamed_outbox after update on device_profile for each row
  when (old.name is distinct from new.name) execute function tell_profile();

create function tell_customer() returns trigger language plpgsql as $$
begin
  insert into device_outbox (customer_id) values (new.id);
  return null;
end $$;

create trigger customer_renamed_outbox after update on customer for each row
  when (old.title is distinct from new.title) execute function tell_customer();

-- Devices write attributes all the time: only those that reports name cost more than this one look.
create function tell_attributes() returns trigger language plpgsql as $$
begin
  if not exists (select from report_key) then
    return null;
  end if;
  insert into device_outbox (device, scope, key)
  select device, scope, key from changed
  where exists (select from report_key where report_key.scope = changed.scope and report_key.key = changed.key);
  return null;
end $$;

create trigger attribute_inserted_outbox after insert on attribute
  referencing new table as changed for each statement execute function tell_attributes();
create trigger attribute_updated_outbox after update on attribute
  referencing new table as changed for each statement execute function tell_attributes();
create trigger attribute_deleted_outbox after delete on attribute
  referencing old table as changed for each statement execute function tell_attributes();

-- Devices that were there before.
insert into device_outbox default values;

-- The newest copy in ClickHouse is the one with the largest number.
create sequence device_copy_version;
