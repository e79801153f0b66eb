/** SQL of commands: their numbers, and the rows of persistent commands. */
import { limits } from '../base/limits.ts';
import type { Queries } from '../postgres/client.ts';
import { contains, containsPattern, type Page, type PageLink, readPage } from '../postgres/page.ts';
import { isForeignKeyViolation } from '../postgres/postgres-error.ts';

export const rpcStatuses = ['QUEUED', 'SENT', 'DELIVERED', 'SUCCESSFUL', 'TIMEOUT', 'EXPIRED', 'FAILED'] as const;
export type RpcStatus = (typeof rpcStatuses)[number];

export interface StoredRpc {
  id: string;
  createdTime: number;
  tenantId: string;
  deviceId: string;
  /** Number of the device. */
  device: number;
  /** The id that the device sees. */
  number: number;
  method: string;
  params: string;
  oneway: boolean;
  expirationTime: number;
  retries: number | null;
  additionalInfo: string | null;
  /** The customer of the user who sent it; null: the sender may command the devices of every customer. */
  callerCustomerId: string | null;
  status: RpcStatus;
  response: string | null;
  attempts: number;
}

/** `customerId`: the device's present customer. */
export type OwnedRpc = StoredRpc & { customerId: string | null };

const columns = `id, created_time as "createdTime", tenant_id as "tenantId", device_id as "deviceId", device, number,
  method, params, oneway, expiration_time as "expirationTime", retries, additional_info as "additionalInfo",
  caller_customer as "callerCustomerId", status, response, attempts`;

const sortColumns = new Map([
  ['id', 'id'],
  ['createdTime', 'created_time'],
  ['expirationTime', 'expiration_time'],
  ['status', 'status'],
]);

/**
 * Takes `counts[i]` numbers for `devices[i]` and returns the first number of each. Deleted devices are left out. The
 * statement does not wait for its commit to reach the disk, because every command waits for this statement. A crash of
 * the database may thus repeat the last numbers. Only numbers of commands that were not stored repeat: storing a
 * command waits for both commits.
 */
export async function takeNumbers(queries: Queries, devices: number[], counts: number[]): Promise<Map<number, number>> {
  for (;;) {
    try {
      return await takeNumbersOnce(queries, devices, counts);
    } catch (error) {
      // A device was deleted while the statement ran. The next statement leaves that device out.
      if (!isForeignKeyViolation(error, 'rpc_sequence_device_fkey')) throw error;
    }
  }
}

async function takeNumbersOnce(queries: Queries, devices: number[], counts: number[]): Promise<Map<number, number>> {
  // Ordered, so that two workers never wait for each other's rows.
  const rows = await queries.query<{ device: number; next: number; count: number }>(
    `insert into rpc_sequence as s (device, next)
     select d.number, taken.count from unnest($1::bigint[], $2::bigint[]) as taken (device, count)
       join device d on d.number = taken.device
       cross join (select set_config('synchronous_commit', 'off', true)) as relaxed
      order by d.number
     on conflict (device) do update set next = s.next + excluded.next
     returning device, next`,
    [devices, counts],
    { prepared: true },
  );
  const counted = new Map(devices.map((device, n) => [device, counts[n]!]));
  return new Map(rows.map(({ device, next }) => [device, next - counted.get(device)!]));
}

/**
 * Skips `skipped` numbers of every device, also of those without a command yet: PostgreSQL was restored to an earlier
 * moment, and commands since then had the next numbers. Each statement takes `batch` devices in ascending order.
 */
export async function skipRpcNumbers(queries: Queries, skipped: number, batch = 10_000): Promise<void> {
  let last = 0;
  for (;;) {
    try {
      const [row] = await queries.query<{ last: number | null }>(
        `with raised as (
           insert into rpc_sequence as s (device, next)
           select number, $1::bigint from device where number > $2 order by number limit $3
           on conflict (device) do update set next = s.next + excluded.next
           returning device)
         select max(device) as last from raised`,
        [skipped, last, batch],
      );
      if (row?.last == null) return;
      last = Number(row.last);
    } catch (error) {
      // A device was deleted while the statement ran. The next statement leaves that device out.
      if (!isForeignKeyViolation(error, 'rpc_sequence_device_fkey')) throw error;
    }
  }
}

/** Returns false when the device has the most open commands that are allowed. */
export async function insertRpc(
  queries: Queries,
  rpc: Omit<StoredRpc, 'status' | 'response' | 'attempts'>,
  owner: string | null,
): Promise<boolean> {
  const rows = await queries.query(
    `insert into rpc (id, created_time, tenant_id, device_id, device, number, method, params, oneway, expiration_time,
                      retries, additional_info, owner, leased_until, caller_customer)
     select $1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13::uuid,
            case when $13::uuid is null then '-infinity' else now() + $14 * interval '1 ms' end, $16::uuid
      where (select count(*) from rpc where device = $5 and open) < $15
     returning 1`,
    [
      rpc.id,
      rpc.createdTime,
      rpc.tenantId,
      rpc.deviceId,
      rpc.device,
      rpc.number,
      rpc.method,
      rpc.params,
      rpc.oneway,
      rpc.expirationTime,
      rpc.retries,
      rpc.additionalInfo,
      owner,
      limits.rpcLeaseMs,
      limits.rpcPersistentPerDeviceMax,
      rpc.callerCustomerId,
    ],
  );
  return rows.length === 1;
}

/** Changes the status only from one of `from`: the row decides between two workers. */
export async function updateRpcStatus(
  queries: Queries,
  id: string,
  status: RpcStatus,
  from: readonly RpcStatus[],
  change: { isFinal: boolean; response?: string; attempts?: number },
): Promise<boolean> {
  const rows = await queries.query(
    `update rpc set status = $2, open = not $4, response = coalesce($5, response), attempts = coalesce($6, attempts)
      where id = $1 and open and status = any($3) returning 1`,
    [id, status, from, change.isFinal, change.response ?? null, change.attempts ?? null],
  );
  return rows.length === 1;
}

/** What PostgreSQL knows about a command before its delivery. */
export interface Keeping {
  /**
   * True when the command is open, and no other worker may claim the command for half a lease from now. False when
   * another worker has claimed the command.
   */
  isKept: boolean;
  /**
   * The numbers of older commands of the device that wait at other owners, if these owners have renewed the leases.
   * Commands from before the numbers began again at 1 are missing: only the announcements of their owners name them.
   */
  older: number[];
}

export async function keepsRpc(queries: Queries, owner: string, id: string): Promise<Keeping> {
  const [row] = await queries.query<{ lasts: boolean; older: number[] }>(
    `select leased_until > now() + $3 * interval '1 ms' as lasts,
            array(select o.number from rpc o
                   where o.device = rpc.device and o.open and o.number < rpc.number and o.status in ('QUEUED', 'TIMEOUT')
                     and o.owner <> $2 and o.leased_until > now() + $4 * interval '1 ms'
                     and o.leased_until < now() + $5 * interval '1 ms'
                   order by o.number) as older
       from rpc where id = $1 and owner = $2 and open`,
    [id, owner, limits.rpcLeaseMs / 2, limits.rpcLeaseMs - limits.rpcSilentOwnerMs, 2 * limits.rpcLeaseMs],
  );
  if (row === undefined) return { isKept: false, older: [] };
  return { isKept: row.lasts || (await renewRpcs(queries, owner, [id])).has(id), older: row.older };
}

export async function isDeviceOf(queries: Queries, device: number, customerId: string): Promise<boolean> {
  const values = [device, customerId];
  return (await queries.query('select 1 from device where number = $1 and customer_id = $2', values)).length === 1;
}

/** Stores the reply to an open command that was sent, for any owner. Returns false when there is none. */
export async function answerRpc(queries: Queries, device: number, number: number, response: string): Promise<boolean> {
  const rows = await queries.query(
    `update rpc set status = 'SUCCESSFUL', open = false, response = $3
      where device = $1 and number = $2 and open and not oneway and status in ('SENT', 'DELIVERED', 'TIMEOUT')
     returning 1`,
    [device, number, response],
  );
  return rows.length > 0;
}

/** Owners whose commands are left to other workers, by number or id. */
export interface WithoutRoom {
  device: number[];
  customer: string[];
  tenant: string[];
}

/**
 * Open commands without an owner. A lease that ends much later than one made now was made before the clock was set
 * back, and has ended.
 */
export const claimable = `open
  and (leased_until < now() or leased_until > now() + interval '${2 * limits.rpcLeaseMs} ms')`;

/** Claims open commands without an owner for `owner`, the oldest first, except those of `without`. */
export async function claimRpcs(
  queries: Queries,
  owner: string,
  rowsMax: number,
  without: WithoutRoom,
): Promise<OwnedRpc[]> {
  const rows = await queries.query<OwnedRpc>(
    `update rpc set owner = $1, leased_until = now() + $3 * interval '1 ms'
      where id in (select id from rpc where ${claimable}
                      and device <> all($4) and tenant_id <> all($5)
                      and not exists (select 1 from device d where d.id = rpc.device_id and d.customer_id = any($6))
                    order by id limit $2 for update skip locked)
     returning ${columns}, (select d.customer_id from device d where d.id = rpc.device_id) as "customerId"`,
    [owner, rowsMax, limits.rpcLeaseMs, without.device, without.tenant, without.customer],
  );
  return rows.sort((a, b) => (a.id < b.id ? -1 : 1));
}

/** Renews and returns those of `ids` that still belong to this owner and are open. */
export async function renewRpcs(queries: Queries, owner: string, ids: string[]): Promise<Set<string>> {
  const rows = await queries.query<{ id: string }>(
    `update rpc set leased_until = now() + $3 * interval '1 ms'
      where id = any($2) and owner = $1 and open returning id`,
    [owner, ids, limits.rpcLeaseMs],
  );
  return new Set(rows.map((row) => row.id));
}

/** Releases the commands of the owner, except `kept`. */
export async function releaseRpcs(queries: Queries, owner: string, kept: string[]): Promise<void> {
  await queries.query(
    `update rpc set owner = null, leased_until = '-infinity' where owner = $1 and open and id <> all($2)`,
    [owner, kept],
  );
}

/** Deletes closed commands created before `createdBefore`, at most `rowsMax` at a time. */
export async function pruneRpcs(queries: Queries, createdBefore: number, rowsMax: number): Promise<void> {
  await queries.query(
    'delete from rpc where id in (select id from rpc where not open and created_time < $1 limit $2)',
    [createdBefore, rowsMax],
  );
}

export async function findRpc(queries: Queries, tenantId: string, id: string): Promise<StoredRpc | undefined> {
  const [rpc] = await queries.query<StoredRpc>(`select ${columns} from rpc where id = $1 and tenant_id = $2`, [
    id,
    tenantId,
  ]);
  return rpc;
}

export async function deleteRpc(queries: Queries, tenantId: string, id: string): Promise<StoredRpc | undefined> {
  const [rpc] = await queries.query<StoredRpc>(
    `delete from rpc where id = $1 and tenant_id = $2 returning ${columns}`,
    [id, tenantId],
  );
  return rpc;
}

export async function listRpcs(
  queries: Queries,
  deviceId: string,
  status: RpcStatus | undefined,
  link: PageLink,
): Promise<Page<StoredRpc>> {
  const where = `device_id = $1 and ($2::text is null or status = $2) and ${contains('method', '$3')}`;
  const values = [deviceId, status ?? null, containsPattern(link.textSearch)];
  // The parameters of the command and the reply of the device.
  const documents = { columns: ['params', 'additional_info', 'response'], rowBytesMax: 2 * limits.rpcBodyBytesMax };
  const list = { columns, from: 'rpc', where, values, documents, sortColumns, idColumn: 'id' };
  return await readPage<StoredRpc>(queries, list, link);
}
