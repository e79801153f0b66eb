-- A search in the order of profiles reads the index of each profile.
drop index device_by_profile;
create index device_by_profile on device (device_profile_id, id) include (tenant_id, number, search_text);
