-- Users of a customer read the credentials of its devices. After the device is taken from that customer its credentials are
-- known to users of a former customer, until they are replaced. A gateway is confined meanwhile: `device/gateway-scope.ts`.
-- A certificate is no secret: a reader of it does not have its key. Other names beside the same password replace nothing. A
-- token that was replaced and is then given again counts as new.

alter table device add column known_to_former_customer boolean not null default false;

create function mark_former_customer() returns trigger language plpgsql as $$
begin
  if old.customer_id is not null and new.customer_id is distinct from old.customer_id then
    new.known_to_former_customer := new.known_to_former_customer or exists (
      select 1 from device_credentials where device_id = new.id and credentials_type <> 'X509_CERTIFICATE');
  end if;
  return new;
end $$;

create trigger device_former_customer before update of customer_id on device
  for each row execute function mark_former_customer();

create function forget_former_customer() returns trigger language plpgsql as $$
begin
  if old.credentials_type = 'MQTT_BASIC' and new.credentials_type = 'MQTT_BASIC'
     and old.credentials_value::json ->> 'password' = new.credentials_value::json ->> 'password' then
    return null;
  end if;
  update device set known_to_former_customer = false where id = new.device_id and known_to_former_customer;
  return null;
end $$;

create trigger credentials_replaced after update on device_credentials for each row
  when ((old.credentials_type, old.credentials_id, old.credentials_value)
        is distinct from (new.credentials_type, new.credentials_id, new.credentials_value))
  execute function forget_former_customer();
