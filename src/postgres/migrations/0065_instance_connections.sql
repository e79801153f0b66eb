-- The MQTT connections of a host, as of its last heartbeat; null = the host takes none. `npm run hosts -- rebalance` writes how
-- many of them the host is to hand over, and at most how many in a second; the next heartbeat takes that.
alter table instance add column mqtt_connections integer;
alter table instance add column surplus integer;
alter table instance add column surplus_per_second integer;
