-- For how many days the telemetry of a profile's devices is kept: `telemetryTtlDays` of the profile data, read by each
-- call for a history. Null = as long as the installation keeps telemetry.
alter table device_profile add column telemetry_ttl_days integer;
