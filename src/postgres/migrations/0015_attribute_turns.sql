-- The last statement of each lane of an attribute writer that was committed. A statement whose answer was lost is run
-- again and finds its number here: it changes nothing the second time, whatever was written since.
create table attribute_turn (
  -- A lane of one worker, made at its start.
  lane uuid primary key,
  -- Rises with each statement of the lane.
  number bigint not null,
  used_time bigint not null
) with (fillfactor = 50);
