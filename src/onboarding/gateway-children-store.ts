/**
 * SQL that finds and makes many devices of gateways at once: one statement for each table. Rows are inserted by name:
 * two transactions that make the same names wait for each other in one order.
 */
import { limits } from '../base/limits.ts';
import type { DeviceRow } from '../device/model/cached-device.ts';
import { defaultDeviceData } from '../device/model/device.ts';
import { rowColumns } from '../device/sql/store.ts';
import type { Queries } from '../postgres/client.ts';

/** `info`: additional info as JSON; undefined when it is too long to be read for each of many devices. */
export interface NamedRow extends DeviceRow {
  info: string | null | undefined;
}

export async function findNames(queries: Queries, tenantId: string, names: string[]): Promise<NamedRow[]> {
  const rows = await queries.query<NamedRow & { isLong: boolean }>(
    `select ${rowColumns}, coalesce(octet_length(d.additional_info::text), 0) > $3 as "isLong",
            case when octet_length(d.additional_info::text) <= $3 then d.additional_info::text end as info
       from device d where d.tenant_id = $1 and d.name = any($2)`,
    [tenantId, names, limits.childInfoBytesMax],
  );
  return rows.map(({ isLong, ...row }) => (isLong ? { ...row, info: undefined } : row));
}

export interface NewChild {
  id: string;
  gatewayId: string;
  profileId: string;
  name: string;
  info: string;
}

/**
 * Inserts devices with the customer of their gateway, and locks the gateways until the transaction ends. Returns the
 * devices whose name was free and whose gateway exists.
 */
export async function insertChildren(
  queries: Queries,
  tenantId: string,
  children: NewChild[],
  now: number,
): Promise<(DeviceRow & { gatewayId: string })[]> {
  await queries.query('select 1 from device where tenant_id = $1 and id = any($2) order by id for key share', [
    tenantId,
    [...new Set(children.map(({ gatewayId }) => gatewayId))],
  ]);
  const rows = await queries.query<DeviceRow>(
    `insert into device as d (id, created_time, tenant_id, customer_id, device_profile_id, name, device_data, additional_info,
                              made_by)
     select n.id, $1, $2, g.customer_id, n.profile_id, n.name, $3::json, n.info::json, g.number
       from unnest($4::uuid[], $5::uuid[], $6::uuid[], $7::text[], $8::text[]) as n (id, gateway_id, profile_id, name, info)
       join device g on g.id = n.gateway_id and g.tenant_id = $2
      order by n.name collate "C"
     on conflict on constraint device_name_unique do nothing
     returning ${rowColumns}`,
    [
      now,
      tenantId,
      JSON.stringify(defaultDeviceData),
      children.map(({ id }) => id),
      children.map(({ gatewayId }) => gatewayId),
      children.map(({ profileId }) => profileId),
      children.map(({ name }) => name),
      children.map(({ info }) => info),
    ],
  );
  const gateways = new Map(children.map(({ id, gatewayId }) => [id, gatewayId]));
  return rows.map((row) => ({ ...row, gatewayId: gateways.get(row.id)! }));
}

/** Replaces the additional info of devices whose info has not changed since it was read. */
export async function updateInfos(
  queries: Queries,
  infos: { id: string; from: string | null; to: string }[],
): Promise<void> {
  await queries.query(
    `update device d set additional_info = n.after::json
       from (select * from unnest($1::uuid[], $2::text[], $3::text[]) as n (id, before, after) order by id) as n
      where d.id = n.id and d.additional_info::text is not distinct from n.before`,
    [infos.map(({ id }) => id), infos.map(({ from }) => from), infos.map(({ to }) => to)],
  );
}
