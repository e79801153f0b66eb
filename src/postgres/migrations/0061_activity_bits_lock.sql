-- An upsert fires the triggers of both its inserts and its updates: it locks words twice, each time in their order, and two
-- upserts could wait for each other in a circle. One lock for all words, on all hosts, lasts until the end of the transaction.
create or replace function mark_activity_bits() returns trigger language plpgsql as $$
declare
  woken bigint[];
  ended bigint[];
begin
  if tg_op = 'INSERT' then
    select array_agg(device) into woken from changed where active;
  elsif tg_op = 'DELETE' then
    select array_agg(device) into ended from changed where active;
  else
    select array_agg(device) filter (where c.active), array_agg(device) filter (where f.active) into woken, ended
      from changed c join former f using (device) where c.active <> f.active;
  end if;
  if woken is not null or ended is not null then
    perform pg_advisory_xact_lock(hashtextextended('activity_bits', 0));
  end if;
  if woken is not null then
    perform set_activity_bits(woken);
  end if;
  if ended is not null then
    perform clear_activity_bits(ended);
  end if;
  return null;
end $$;
