-- What a tenant may use. A tenant has one profile; a new tenant gets the default one.
create table tenant_profile (
  id uuid primary key,
  created_time bigint not null,
  name text not null,
  description text,
  is_default boolean not null default false,
  profile_data json not null,
  -- Days for which telemetry is kept, from `profile_data`; null = as long as the installation keeps it.
  telemetry_ttl_days integer,
  version bigint not null default 1,
  constraint tenant_profile_name_unique unique (name)
);
create unique index tenant_profile_default_unique on tenant_profile (is_default) where is_default;
insert into tenant_profile (id, created_time, name, description, is_default, profile_data)
  values ('13814000-1dd2-11b2-8080-808080808081', (extract(epoch from now()) * 1000)::bigint, 'Default',
          'Default tenant profile', true, '{"configuration":{"type":"DEFAULT"},"queueConfiguration":null}');

-- The default lets a host of the earlier version make tenants.
alter table tenant add column profile_id uuid not null default '13814000-1dd2-11b2-8080-808080808081'
  references tenant_profile (id);
create index tenant_by_profile on tenant (profile_id);

-- Rises with each change of a profile or of a tenant's profile, in the transaction of the change.
create table tenant_limits_version (version bigint not null);
insert into tenant_limits_version values (1);

-- Days for which the telemetry of a device profile's devices is kept: the fewest that its profile or the tenant's profile
-- sets. Null = as long as the installation keeps telemetry.
create view telemetry_days as
  select p.id as device_profile_id, p.tenant_id, p.name, least(p.telemetry_ttl_days, t.telemetry_ttl_days) as days
    from device_profile p
    join tenant on tenant.id = p.tenant_id
    join tenant_profile t on t.id = tenant.profile_id;
