-- Which saved views name which attributes: an attribute is kept in ClickHouse as long as some view names it, and counts
-- against the tenant of the view.

create table report_view_key (
  view_id uuid not null references report_view (id) on delete cascade,
  tenant_id uuid not null,
  -- as in `report_key`
  scope smallint not null,
  key text collate "C" not null,
  primary key (view_id, scope, key)
);
create index report_view_key_by_tenant on report_view_key (tenant_id, scope, key);
create index report_view_key_by_key on report_view_key (scope, key);

insert into report_view_key (view_id, tenant_id, scope, key)
select distinct v.id, v.tenant_id,
       case source ->> 'attributeScope' when 'CLIENT_SCOPE' then 1 when 'SHARED_SCOPE' then 2 else 3 end,
       source ->> 'key'
  from report_view v,
       lateral (select json_array_elements(v.definition -> 'fields') as source
                union all
                select json_array_elements(v.definition -> 'filters')) as sources
 where source ->> 'source' = 'ATTRIBUTE';
