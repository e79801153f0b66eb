-- How far each journal was stored at which time: a row in a minute at most, and only when the journal has moved. Every row up to
-- this order was in ClickHouse at that time, or in quarantine. Answers of receipts say so; old rows are removed.
create table stored_orders (
  writer integer not null,
  stored_order bigint not null,
  at timestamptz not null default clock_timestamp(),
  primary key (writer, stored_order)
);
