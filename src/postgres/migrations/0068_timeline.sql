-- The timeline of a server that takes writes: a standby that takes over begins a new one. Null where the server does not tell
-- it, as managed services may: there a failover that loses transactions is noticed by their numbers only.
create function server_timeline() returns text language plpgsql stable as $$
begin
  return case when not pg_is_in_recovery() then left(pg_walfile_name(pg_current_wal_lsn()), 8) end;
exception when others then
  return null;
end $$;
