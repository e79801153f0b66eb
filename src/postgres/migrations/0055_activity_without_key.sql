-- Devices that wake up are written by thousands. A foreign key looks for the device of each new row by a statement of its
-- own. `recordMarks` locks these devices by one statement instead, and a delete removes the rows of its devices by one.
alter table device_activity drop constraint if exists device_activity_device_fkey;

-- The rows are locked in the order in which other writers lock them.
create function delete_activity() returns trigger language plpgsql as $$
begin
  perform from device_activity where device in (select number from gone) order by device for update;
  delete from device_activity where device in (select number from gone);
  return null;
end $$;

create trigger device_deleted_activity after delete on device
  referencing old table as gone for each statement execute function delete_activity();
