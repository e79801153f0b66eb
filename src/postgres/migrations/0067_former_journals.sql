-- Journals that are gone and whose order numbers are ahead of the clock, because it was set back: deletes name the writer and its
-- highest order. A row is removed, and its writer id is free again, when the clock has passed the order.
create table former_journals (
  writer int primary key,
  order_high bigint not null
);
