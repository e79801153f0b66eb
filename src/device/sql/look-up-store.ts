/**
 * SQL of what the caches of devices read: the devices of tokens and of sign-ins, and the transports of profiles. A
 * statement that changes an answer must be followed by `insertCredentialChanges` in the same transaction.
 */
import type { Queries } from '../../postgres/client.ts';
import type { DeviceRow, StoredDevice } from '../model/cached-device.ts';
import type { CredentialsType, TransportType } from '../model/device.ts';
import { compactRow } from '../model/device-row.ts';
import { rowColumns } from './store.ts';

/** Returns the devices of access tokens; other kinds of credentials are invalid over HTTP. */
export async function lookUpTokens(queries: Queries, tokens: string[]): Promise<Map<string, DeviceRow>> {
  const rows = await queries.query<DeviceRow & { token: string }>(
    `select k.credentials_id as token, ${rowColumns}
       from device_credentials k join device d on d.id = k.device_id
      where k.credentials_id = any($1) and k.credentials_type = 'ACCESS_TOKEN'`,
    [tokens],
  );
  return new Map(rows.map((row) => [row.token, compactRow(row)]));
}

/** Credentials of any kind, with their device and the data that a session of the device needs. */
export interface LoginRow extends StoredDevice {
  credentialsId: string;
  type: CredentialsType;
  value: string | null;
  isGateway: boolean;
  transportType: TransportType;
  profileVersion: number;
}

const loginColumns = `k.credentials_id as "credentialsId", k.credentials_type as type, k.credentials_value as value,
  k.version as "credentialsVersion", ${rowColumns}, p.transport_type as "transportType",
  p.version as "profileVersion"`;
const loginTables = `device_credentials k join device d on d.id = k.device_id
  join device_profile p on p.id = d.device_profile_id`;

export async function lookUpLogins(queries: Queries, credentialsIds: string[]): Promise<LoginRow[]> {
  return await queries.query<LoginRow>(
    `select ${loginColumns} from ${loginTables} where k.credentials_id = any($1)`,
    [credentialsIds],
    { prepared: true },
  );
}

/** Returns the devices of those credentials that are as they were made, and whose device is. */
export async function findUnchanged(queries: Queries, credentialsIds: string[]): Promise<Map<string, string>> {
  const rows = await queries.query<{ credentialsId: string; deviceId: string }>(
    `select k.credentials_id as "credentialsId", d.id as "deviceId"
       from device_credentials k join device d on d.id = k.device_id
      where k.credentials_id = any($1) and k.version = 1 and d.version = 1`,
    [credentialsIds],
    { prepared: true },
  );
  return new Map(rows.map(({ credentialsId, deviceId }) => [credentialsId, deviceId]));
}

/**
 * Returns a page of the credentials of all devices, by their own id (not `credentialsId`); `after`: the last id of the
 * previous page.
 */
export async function scanLogins(
  queries: Queries,
  after: string,
  rowsMax: number,
): Promise<{ rows: LoginRow[]; last: string | undefined }> {
  const found = await queries.query<LoginRow & { key: string }>(
    `select k.id as key, ${loginColumns} from ${loginTables} where k.id > $1 order by k.id limit $2`,
    [after, rowsMax],
  );
  const rows = found.map(({ key: _, ...row }) => row);
  return { rows, last: found.at(-1)?.key };
}

/** Returns all profiles with their versions. */
export async function listProfileVersions(queries: Queries): Promise<{ id: string; version: number }[]> {
  return await queries.query('select id, version from device_profile');
}

export interface ProfileTransport {
  id: string;
  version: number;
  /** The member `transportConfiguration`. */
  transport: unknown;
  transportType: TransportType;
}

export async function lookUpProfileTransports(queries: Queries, ids: string[]): Promise<ProfileTransport[]> {
  const rows = await queries.query<
    Omit<ProfileTransport, 'transport'> & { data: { transportConfiguration?: unknown } }
  >(
    `select id, version, transport_type as "transportType", profile_data as data from device_profile where id = any($1)`,
    [ids],
  );
  return rows.map(({ data, ...row }) => ({ ...row, transport: data.transportConfiguration }));
}

/** Returns the devices of sessions, with the versions of their credentials. */
export async function lookUpDevices(queries: Queries, numbers: number[]): Promise<StoredDevice[]> {
  return await queries.query<StoredDevice>(
    `select ${rowColumns}, k.version as "credentialsVersion"
       from device d join device_credentials k on k.device_id = d.id where d.number = any($1)`,
    [numbers],
  );
}

/** What a reader of points wants to know of the device that sent them. */
export interface SenderRow {
  number: number;
  id: string;
  name: string;
  tenantId: string;
  profileId: string;
}

/** Returns the devices of these numbers that exist. */
export async function lookUpSenders(queries: Queries, numbers: number[]): Promise<SenderRow[]> {
  return await queries.query<SenderRow>(
    `select number, id, name, tenant_id as "tenantId", device_profile_id as "profileId"
       from device where number = any($1)`,
    [numbers],
    { prepared: true },
  );
}
