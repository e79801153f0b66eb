-- No later opening of a journal ships a row with an order up to this again. When an opening was never reported, as after two
-- crashes within a second, only deletes of later orders have to wait for the journal once more.
alter table journals add column done_order bigint not null default 0;
