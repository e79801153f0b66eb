-- Which devices a gateway acts for. `made_by` is the number of the gateway that made the device. A gateway is confined by
-- "gatewayScope":"own" in its additional info: while it has no customer, it acts only for devices that it made.

alter table device
  add column made_by bigint,
  add column is_confined boolean not null default false;

create or replace function mark_gateway() returns trigger language plpgsql as $$
begin
  new.is_gateway :=
    case when json_typeof(new.additional_info) = 'object' then (new.additional_info -> 'gateway')::text end
      is not distinct from 'true';
  new.is_confined := new.is_gateway and (new.additional_info ->> 'gatewayScope') is not distinct from 'own';
  return new;
exception when data_exception then
  -- An escape that this server cannot decode: such a document was never read as that of a gateway.
  new.is_gateway := false;
  new.is_confined := false;
  return new;
end $$;
