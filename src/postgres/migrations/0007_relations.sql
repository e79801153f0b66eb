-- What belongs to what: a gateway and the devices that it made. The ends may be of any type, so they are no references;
-- an end that is deleted takes its relations with it. Who relates to an entity that others may delete holds its row.
create table relation (
  from_id uuid not null,
  from_type text not null,
  to_id uuid not null,
  to_type text not null,
  -- as users name it: `Created`, `Contains`, …
  type text not null,
  type_group text not null,
  additional_info json,
  version bigint generated always as identity,
  primary key (from_id, from_type, type_group, type, to_id, to_type)
);
create index relation_by_target on relation (to_id, to_type);

create function forget_relations() returns trigger language plpgsql as $$
begin
  delete from relation where from_id = old.id;
  delete from relation where to_id = old.id;
  return null;
end $$;
create trigger device_relations after delete on device for each row execute function forget_relations();
create trigger customer_relations after delete on customer for each row execute function forget_relations();
