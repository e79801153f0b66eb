-- Searches know no letter case, of any alphabet, whatever the locale of the database: the embedded one has none.
do $$
begin
  if current_setting('server_version_num')::int >= 170000 then
    create collation any_letter_case (provider = builtin, locale = 'C.UTF-8');
  else
    create collation any_letter_case (provider = icu, locale = 'und');
  end if;
end
$$;
