-- A search of a whole tenant, or of its active devices, reads one index, which has the order and the searched text; a list of
-- the active devices of a profile or customer reads the index of that. The longest name and label, of three bytes a letter,
-- take 2 350 of the 2 704 bytes that an entry may have.
alter table device
  drop constraint device_name_unique,
  add constraint device_name_unique unique (tenant_id, name) include (number, search_text);

drop index device_by_created, device_by_label, device_by_profile, device_by_customer;
create index device_by_created on device (tenant_id, created_time, id) include (number, search_text);
create index device_by_label on device (tenant_id, label, id) include (number, search_text);
create index device_by_profile on device (device_profile_id, id) include (tenant_id, number);
create index device_by_customer on device (customer_id, id) include (tenant_id, number) where customer_id is not null;
