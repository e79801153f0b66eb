/** SQL of the certificate issuers that profiles accept, and of the proofs that tenants hold the issuers' keys. */
import { badRequest, type Fault } from '../../base/errors.ts';
import type { Queries } from '../../postgres/client.ts';
import { type Page, type PageLink, readPage } from '../../postgres/page.ts';
import { isUniqueViolation } from '../../postgres/postgres-error.ts';
import type { FullProfile } from '../model/device.ts';

/** `EARLIER`: saved before proofs were required; accepted as long as no profile of another tenant is proven. */
export const issuerStates = ['UNPROVEN', 'EARLIER', 'PROVEN'] as const;
type IssuerState = (typeof issuerStates)[number];

/** A profile that accepts certificates of an issuer. */
export interface ChainProfile {
  id: string;
  tenantId: string;
  isProven: boolean;
  /** Digest of the certificate. */
  key: string;
  /** PEM, or only its base64. */
  certificate: string;
  /** Finds the name of a device in the common name of its certificate. */
  pattern: string;
  mayCreate: boolean;
}

/**
 * Returns the profiles of all tenants that may answer for issuers of these names. Any tenant may prove a certificate of
 * any name, so each tenant has a share of the profiles that are checked.
 */
export async function findChainProfiles(
  queries: Queries,
  subjects: string[],
  perTenantMax: number,
): Promise<ChainProfile[]> {
  const rows = await queries.query<
    Pick<FullProfile, 'id' | 'tenantId' | 'data'> & { key: string; isProven: boolean; place: number }
  >(
    `select * from (
       select id, tenant_id as "tenantId", provision_device_key as key, profile_data as data, issuer_state = 2 as "isProven",
              row_number() over (partition by tenant_id order by issuer_state desc, id) as place
         from device_profile
        where issuer_subject = any($1) and issuer_state > 0 and provision_type = 'X509_CERTIFICATE_CHAIN') as found
      where place <= $2 order by id`,
    [subjects, perTenantMax],
  );
  return rows.map(({ id, tenantId, key, isProven, data: { provisionConfiguration } }) => {
    const { provisionDeviceSecret, certificateRegExPattern: pattern } = provisionConfiguration;
    return {
      id,
      tenantId,
      isProven,
      key,
      certificate: provisionDeviceSecret ?? '',
      pattern: typeof pattern === 'string' && pattern !== '' ? pattern : '.*',
      mayCreate: provisionConfiguration['allowCreateNewDevicesByX509Certificate'] === true,
    };
  });
}

/** Returns profiles that were saved before issuers were found by name. */
export async function findUnnamedIssuers(
  queries: Queries,
  countMax: number,
): Promise<{ id: string; certificate: string | null }[]> {
  return await queries.query(
    `select id, profile_data -> 'provisionConfiguration' ->> 'provisionDeviceSecret' as certificate from device_profile
      where issuer_state > 0 and issuer_subject is null order by id limit $1`,
    [countMax],
  );
}

export async function nameIssuers(queries: Queries, ids: string[], subjects: string[]): Promise<void> {
  await queries.query(
    `update device_profile p set issuer_subject = n.subject from unnest($1::uuid[], $2::text[]) as n (id, subject)
      where p.id = n.id and p.issuer_subject is null`,
    [ids, subjects],
  );
}

/** Stores another certificate, or none. The proof of the former certificate ends. */
export async function setIssuer(
  queries: Queries,
  profileId: string,
  issuer: { subject: string; nonce: string } | undefined,
): Promise<void> {
  await queries.query(
    'update device_profile set issuer_state = 0, issuer_subject = $2, issuer_nonce = $3 where id = $1',
    [profileId, issuer?.subject ?? null, issuer?.nonce ?? null],
  );
}

export async function markProven(queries: Queries, profileId: string): Promise<void> {
  try {
    await queries.query('update device_profile set issuer_state = 2 where id = $1', [profileId]);
  } catch (error) {
    if (!isUniqueViolation(error, 'device_profile_issuer_proven_unique')) throw error;
    throw issuerProven();
  }
}

export function issuerProven(): Fault {
  return badRequest('issuer_proven', 'Another tenant has proven that it holds the key of this issuer.');
}

/** An issuer as administrators of its tenant see it. */
export interface Issuer {
  profileId: string;
  name: string;
  state: IssuerState;
  nonce: string;
}

type IssuerRow = Omit<Issuer, 'state'> & { state: number };

const issuerColumns = `p.id as "profileId", p.name, p.issuer_state as state, coalesce(p.issuer_nonce, '') as nonce`;
const sortColumns = new Map([
  ['id', 'p.id'],
  ['name', 'p.name'],
]);

export async function listIssuers(queries: Queries, tenantId: string, link: PageLink): Promise<Page<Issuer>> {
  const where = `p.tenant_id = $1 and p.provision_type = 'X509_CERTIFICATE_CHAIN'`;
  const list = { columns: issuerColumns, from: 'device_profile p', where, values: [tenantId] };
  const page = await readPage<IssuerRow>(queries, { ...list, sortColumns, idColumn: 'p.id' }, link);
  return { ...page, data: page.data.map(issuerOf) };
}

export async function findIssuer(queries: Queries, tenantId: string, profileId: string): Promise<Issuer | undefined> {
  const [row] = await queries.query<IssuerRow>(
    `select ${issuerColumns} from device_profile p
      where p.tenant_id = $1 and p.id = $2 and p.provision_type = 'X509_CERTIFICATE_CHAIN'`,
    [tenantId, profileId],
  );
  return row && issuerOf(row);
}

function issuerOf({ state, ...row }: IssuerRow): Issuer {
  return { ...row, state: issuerStates[state] ?? 'UNPROVEN' };
}
