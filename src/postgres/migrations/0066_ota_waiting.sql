-- A device waits once for its notification: later work replaces earlier work that waits.
create index ota_rollout_by_device on ota_rollout (device_id) where device_id is not null;
