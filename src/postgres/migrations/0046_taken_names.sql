-- Names of other tenants (credentials, emails, provisioning keys) that a tenant, or a profile of devices that provision
-- themselves, chose in the running window (admin/taken-names.ts).

create table taken_name_tries (
  owner text primary key,
  met integer not null,
  window_ends_time bigint not null
);
