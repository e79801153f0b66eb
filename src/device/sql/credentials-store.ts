/** SQL of the credentials of devices. Each function takes the pool or a transaction; none checks rights. */
import { assert, badRequest, type Fault } from '../../base/errors.ts';
import type { Queries } from '../../postgres/client.ts';
import { isUniqueViolation } from '../../postgres/postgres-error.ts';
import type { CredentialsType, DeviceCredentials } from '../model/device.ts';

const credentialsColumns = `k.id, k.created_time as "createdTime", k.device_id as "deviceId", k.credentials_type as type,
  k.credentials_id as "credentialsId", k.credentials_value as value, k.version`;

export async function findCredentials(queries: Queries, deviceId: string): Promise<DeviceCredentials | undefined> {
  const [credentials] = await queries.query<DeviceCredentials>(
    `select ${credentialsColumns} from device_credentials k where k.device_id = $1`,
    [deviceId],
  );
  return credentials;
}

/** Reads credentials with the customer in one statement: a customer that has just lost the device gets no new ones. */
export async function findOwnedCredentials(
  queries: Queries,
  tenantId: string,
  deviceId: string,
): Promise<{ customerId: string | null; credentials: DeviceCredentials } | undefined> {
  const [row] = await queries.query<DeviceCredentials & { customerId: string | null }>(
    `select ${credentialsColumns}, d.customer_id as "customerId"
       from device_credentials k join device d on d.id = k.device_id where d.id = $1 and d.tenant_id = $2`,
    [deviceId, tenantId],
  );
  if (!row) return undefined;
  const { customerId, ...credentials } = row;
  return { customerId, credentials };
}

export async function insertCredentials(
  queries: Queries,
  credentials: Omit<DeviceCredentials, 'version'>,
): Promise<void> {
  try {
    await queries.query(
      `insert into device_credentials (id, created_time, device_id, credentials_type, credentials_id, credentials_value)
       values ($1, $2, $3, $4, $5, $6)`,
      [
        credentials.id,
        credentials.createdTime,
        credentials.deviceId,
        credentials.type,
        credentials.credentialsId,
        credentials.value,
      ],
    );
  } catch (error) {
    throw asCredentialsConflict(error);
  }
}

export async function updateCredentials(
  queries: Queries,
  deviceId: string,
  change: { type: CredentialsType; credentialsId: string; value: string | null },
): Promise<DeviceCredentials> {
  try {
    const [credentials] = await queries.query<DeviceCredentials>(
      `update device_credentials k set credentials_type = $2, credentials_id = $3, credentials_value = $4,
              version = version + 1
        where device_id = $1 returning ${credentialsColumns}`,
      [deviceId, change.type, change.credentialsId, change.value],
    );
    assert(credentials, 'a locked device has credentials');
    return credentials;
  } catch (error) {
    throw asCredentialsConflict(error);
  }
}

/** Credentials are unique over all tenants; the refusal does not name the owner. */
export function credentialsTaken(): Fault {
  return badRequest('credentials_taken', 'These device credentials cannot be used: choose others.');
}

/** True when a device of another tenant has the credentials. */
export async function areOthersCredentials(
  queries: Queries,
  tenantId: string,
  credentialsId: string,
): Promise<boolean> {
  const rows = await queries.query(
    `select 1 from device_credentials k join device d on d.id = k.device_id
      where k.credentials_id = $1 and d.tenant_id <> $2`,
    [credentialsId, tenantId],
  );
  return rows.length > 0;
}

function asCredentialsConflict(error: unknown): unknown {
  if (!isUniqueViolation(error, 'device_credentials_id_unique')) return error;
  return credentialsTaken();
}
