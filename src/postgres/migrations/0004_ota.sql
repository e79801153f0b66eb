-- Packages of firmware and software, which device has which, and the work of telling the devices.

create table ota_package (
  id uuid primary key,
  created_time bigint not null,
  tenant_id uuid not null references tenant (id),
  -- null = for devices of every profile
  device_profile_id uuid references device_profile (id) on delete cascade,
  type text not null check (type in ('FIRMWARE', 'SOFTWARE')),
  title text not null,
  version text not null,
  tag text,
  -- the file is somewhere else, not here
  url text,
  -- all five null until the file is uploaded
  file_name text,
  content_type text,
  checksum_algorithm text,
  checksum text,
  data_size bigint,
  external_id uuid,
  additional_info json,
  constraint ota_package_title_version_unique unique (tenant_id, title, version)
);
create index ota_package_by_tenant on ota_package (tenant_id, id);
create index ota_package_by_profile on ota_package (device_profile_id);

-- The file in pieces of one size, the last one shorter: a chunk is read without the rest of the file.
create table ota_piece (
  package_id uuid not null references ota_package (id) on delete cascade,
  number integer not null,
  bytes bytea not null,
  primary key (package_id, number)
);
-- Packages are compressed already.
alter table ota_piece alter column bytes set storage external;

-- A package that somebody uses cannot go.
alter table device add constraint device_firmware_fkey foreign key (firmware_id) references ota_package (id);
alter table device add constraint device_software_fkey foreign key (software_id) references ota_package (id);
alter table device_profile
  add constraint device_profile_firmware_fkey foreign key (firmware_id) references ota_package (id);
alter table device_profile
  add constraint device_profile_software_fkey foreign key (software_id) references ota_package (id);
create index device_by_firmware on device (firmware_id) where firmware_id is not null;
create index device_by_software on device (software_id) where software_id is not null;
create index device_profile_by_firmware on device_profile (firmware_id) where firmware_id is not null;
create index device_profile_by_software on device_profile (software_id) where software_id is not null;

-- The packages that the device was last told of; no reference: what was told stays told.
alter table device add column told_firmware_id uuid;
alter table device add column told_software_id uuid;

-- Devices whose assignment may have changed, and profiles whose devices are still to be looked at. Written with the
-- change itself, so that a crash loses no step. Without references: whoever deletes a device must not wait for the work.
create table ota_rollout (
  id bigint generated always as identity primary key,
  device_id uuid,
  device_profile_id uuid,
  -- of a profile: devices up to this one have their own row
  done_device_id uuid not null default '00000000-0000-0000-0000-000000000000',
  check ((device_id is null) <> (device_profile_id is null))
);
create index ota_rollout_by_kind on ota_rollout ((device_id is null), id);
