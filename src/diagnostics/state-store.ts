/** SQL for the diagnostics of a device: its activity, its maker, what waits for it; and the names of listed devices. */
import type { Queries } from '../postgres/client.ts';

/** A package that is assigned to a device, itself or through its profile. */
interface Assigned {
  title: string;
  version: string;
}

interface DeviceState {
  active: boolean;
  lastActivityTime: number | null;
  lastConnectTime: number | null;
  lastDisconnectTime: number | null;
  /** Persistent commands without an end. */
  commands: number;
  /** Shared attributes that the device has not confirmed; null = the device never asked for updates. */
  attributes: number | null;
  firmware: Assigned | null;
  software: Assigned | null;
}

/** Undefined: the device was deleted. */
export async function readDeviceState(queries: Queries, number: number): Promise<DeviceState | undefined> {
  const assigned = (column: string) => `
    (select json_build_object('title', o.title, 'version', o.version) from ota_package o
      where o.id = coalesce(d.${column}, p.${column}))`;
  const time = (key: string) => `(select value::bigint from own where key = '${key}')`;
  const [state] = await queries.query<DeviceState>(
    `with own as materialized (select key, value from activity_attribute where device = $1)
     select coalesce((select value = '1' from own where key = 'active'), false) as active,
            ${time('lastActivityTime')} as "lastActivityTime",
            ${time('lastConnectTime')} as "lastConnectTime",
            ${time('lastDisconnectTime')} as "lastDisconnectTime",
            (select count(*) from rpc where device = $1 and open) as commands,
            (select count(a.key) from attribute_head h left join attribute a on a.device = h.device and a.scope = 2
                and a.version > case when a.kind = 0 then h.deletions_seen else h.changes_seen end
              where h.device = $1 and h.changes_seen is not null group by h.device) as attributes,
            ${assigned('firmware_id')} as firmware, ${assigned('software_id')} as software
       from device d join device_profile p on p.id = d.device_profile_id where d.number = $1`,
    [number],
  );
  return state;
}

export interface NamedDevice {
  number: number;
  id: string;
  name: string;
  customerId: string | null;
  /** The days that the profiles of the device and its tenant set; null = none. */
  telemetryDays: number | null;
}

/** Returns those of the devices that the tenant has. */
export async function findNamed(
  queries: Queries,
  tenantId: string,
  numbers: number[],
): Promise<Map<number, NamedDevice>> {
  const rows = await queries.query<NamedDevice>(
    `select d.number, d.id, d.name, d.customer_id as "customerId", t.days as "telemetryDays"
       from device d join telemetry_days t using (device_profile_id)
      where d.tenant_id = $1 and d.number = any($2)`,
    [tenantId, numbers],
  );
  return new Map(rows.map((row) => [row.number, row]));
}
