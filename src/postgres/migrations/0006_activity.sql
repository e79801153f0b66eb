-- When devices were last heard of. The server attributes `active`, `lastActivityTime`, … are written with these rows, in
-- one transaction; the row's lock makes one writer of all workers and hosts. Rows change all the time and are looked
-- through as a whole: room in each page and no further index keep both cheap.
create table device_activity (
  device bigint primary key references device (number) on delete cascade,
  active boolean not null,
  -- 0 = only connected or disconnected so far
  last_activity_time bigint not null,
  last_connect_time bigint,
  last_disconnect_time bigint,
  inactivity_alarm_time bigint
) with (fillfactor = 50);

-- Devices with a time of their own; few, so that a look at all devices does not visit the attributes of each.
create index attribute_inactivity_timeout on attribute (device) where scope = 3 and key = 'inactivityTimeout';
