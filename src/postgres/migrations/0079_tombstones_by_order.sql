-- Which deletes of a device cover an order: looked for whenever a frame of a stream is stored long after it was made.
-- The index begins with the device, so it takes the place of the one on the device alone.
create index tombstones_by_device_order on tombstones (device, order_number);
create index tombstones_ahead on tombstones (device) where ahead_writers <> '{}';
drop index tombstones_by_device;
