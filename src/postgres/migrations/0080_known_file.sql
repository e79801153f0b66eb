-- A row for each file of known devices. A file names the mark that PostgreSQL had committed before the file got its last
-- changes: a database without that mark was restored to an earlier moment, and lacks changes that the file has.
create table known_file (
  id text primary key,
  mark bigint not null,
  written_time timestamptz not null default now()
) with (fillfactor = 50);

-- The table of the log is another one after a restore of rows, also on the same server.
create or replace function server_timeline() returns text language plpgsql stable as $$
begin
  return case when not pg_is_in_recovery() then
    left(pg_walfile_name(pg_current_wal_lsn()), 8) || '/' || 'credential_changes'::regclass::oid
  end;
exception when others then
  return null;
end $$;
