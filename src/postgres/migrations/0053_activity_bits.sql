-- Which devices are active, a bit each: lists count and skip devices by these bits, not by a row of `device_activity` each.
-- A row holds 64 devices with consecutive numbers. No word below the last one is missing, so that all rows together, as
-- int8send in the order of `word`, are the argument of get_bit(bytea, device.number).
create table activity_bits (
  -- device.number / 64
  word bigint primary key,
  bits bigint not null
) with (fillfactor = 50);

-- int8send writes the highest byte first, and get_bit counts from the lowest bit of each byte.
create function activity_bit(device bigint) returns bigint immutable language sql as $$
  select 1::bigint << ((device % 64)::int # 56)
$$;

-- The row lock in `device_activity` orders the changes of one device. A statement locks words after all its rows, in their
-- order, so that statements of several hosts do not wait for each other in a circle.
create function set_activity_bits(devices bigint[]) returns void language plpgsql as $$
begin
  insert into activity_bits (word, bits)
  select word, 0 from generate_series((select coalesce(max(word), -1) + 1 from activity_bits),
                                      (select max(device) / 64 from unnest(devices) as d (device))) as word
  on conflict do nothing;
  insert into activity_bits as b (word, bits)
  select device / 64, bit_or(activity_bit(device)) from unnest(devices) as d (device) group by 1 order by 1
  on conflict (word) do update set bits = b.bits | excluded.bits;
end $$;

create function clear_activity_bits(devices bigint[]) returns void language sql as $$
  with ended as materialized (
    select device / 64 as word, bit_or(activity_bit(device)) as mask from unnest(devices) as d (device) group by 1
  ), turn as materialized (
    select b.word, e.mask from activity_bits b join ended e using (word)
     where b.bits & e.mask <> 0 order by b.word for update of b
  )
  update activity_bits b set bits = b.bits & ~turn.mask from turn where b.word = turn.word
$$;

create function mark_activity_bits() returns trigger language plpgsql as $$
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
  if woken is not null then
    perform set_activity_bits(woken);
  end if;
  if ended is not null then
    perform clear_activity_bits(ended);
  end if;
  return null;
end $$;

create trigger activity_inserted_bits after insert on device_activity
  referencing new table as changed for each statement execute function mark_activity_bits();
create trigger activity_updated_bits after update on device_activity
  referencing old table as former new table as changed for each statement execute function mark_activity_bits();
create trigger activity_deleted_bits after delete on device_activity
  referencing old table as changed for each statement execute function mark_activity_bits();

-- The triggers hold back other writers until the end of this transaction.
select set_activity_bits(array_agg(device)) from device_activity where active having count(*) > 0;

-- Whether the index of letters is the shorter way depends on how many names have the text: a sample of 100 is too coarse.
alter table device alter column search_text set statistics 200;
