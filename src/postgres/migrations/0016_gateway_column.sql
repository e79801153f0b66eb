-- Whether a device is a gateway, so that a sign-in reads no document of any length. The column is added without a rewrite
-- of the table; the next migration marks the gateways that exist, without a lock that devices wait for.

alter table device add column is_gateway boolean not null default false;

create function mark_gateway() returns trigger language plpgsql as $$
begin
  new.is_gateway :=
    case when json_typeof(new.additional_info) = 'object' then (new.additional_info -> 'gateway')::text end
      is not distinct from 'true';
  return new;
exception when data_exception then
  -- An escape that this server cannot decode: such a document was never read as that of a gateway.
  new.is_gateway := false;
  return new;
end $$;

-- Only rows whose text may name a gateway cost a call.
create trigger device_gateway_inserted before insert on device for each row
  when (strpos(new.additional_info::text, '"gateway"') > 0)
  execute function mark_gateway();
create trigger device_gateway_updated before update of additional_info on device for each row
  when (strpos(new.additional_info::text, '"gateway"') > 0 or old.is_gateway)
  execute function mark_gateway();
