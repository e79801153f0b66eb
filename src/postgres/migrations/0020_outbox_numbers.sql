-- A number that is taken in the transaction that creates the sequence is not in the WAL with wal_level = minimal, and
-- neither are the 31 after it: a crash of the server gives them out again, and each change of a device fails until they
-- are used up. The migration that made device_outbox took one. A sequence that is set here is in the WAL.
select setval(
  pg_get_serial_sequence('device_outbox', 'id'),
  greatest(nextval(pg_get_serial_sequence('device_outbox', 'id')), (select max(id) + 1 from device_outbox))
);
