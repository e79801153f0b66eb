/**
 * Issuers of device certificates. Certificates are public, so a tenant must prove that it holds the issuer's key before
 * a profile accepts the issuer's devices. The key signs a statement that names the tenant and a nonce of the profile.
 */
import { createHash, randomBytes, verify, X509Certificate } from 'node:crypto';
import { entityNotFound } from '../auth/roles.ts';
import { assert, badRequest } from '../base/errors.ts';
import type { FullProfile } from '../device/model/device.ts';
import { findIssuer, type Issuer, listIssuers, markProven, setIssuer } from '../device/sql/issuer-store.ts';
import { findFullProfile } from '../device/sql/profile-store.ts';
import type { Postgres, Queries } from '../postgres/client.ts';
import type { Page, PageLink } from '../postgres/page.ts';

const signatureCharsMax = 8_192;

/** Returns undefined when the string is not a certificate. */
export function readCertificate(text: string): X509Certificate | undefined {
  try {
    const isPem = text.includes('-----BEGIN');
    return new X509Certificate(isPem ? text : Buffer.from(text, 'base64'));
  } catch {
    return undefined;
  }
}

/** Returns the digest of a certificate's name: equal for all names that differ only in case and blanks. */
export function subjectDigest(name: string): string {
  const lines = name.split('\n').map((line) => line.trim().replaceAll(/\s+/g, ' ').toLowerCase());
  return createHash('sha256').update(lines.join('\n')).digest('hex');
}

/** Throws 400 when the string is not the certificate of an issuer. */
export function checkIssuer(text: string): X509Certificate {
  const certificate = readCertificate(text);
  if (certificate?.ca) return certificate;
  const what = certificate ? 'is not that of an issuer (basicConstraints CA:TRUE)' : 'cannot be read: it must be PEM';
  throw badRequest('provision_certificate', `The certificate in provisionDeviceSecret ${what}.`);
}

/** A statement that the key of an issuer signed, and the signature in base64. */
export interface IssuerProof {
  nonce: string;
  signature: string;
}

/**
 * Runs before a profile is saved. A certificate that did not change stays proven. A `proof` is checked here; the caller
 * calls `markProven` once the row has the certificate.
 */
export async function changeIssuer(
  queries: Queries,
  stored: Pick<FullProfile, 'provisionType' | 'provisionKey'> | undefined,
  profile: FullProfile,
  proof: IssuerProof | undefined,
): Promise<void> {
  const { id, provisionType, provisionKey, data } = profile;
  const isKept = stored?.provisionType === provisionType && stored.provisionKey === provisionKey;
  if (isKept && !proof) return;
  if (provisionType !== 'X509_CERTIFICATE_CHAIN') {
    if (proof) throw noIssuer();
    if (stored?.provisionType === 'X509_CERTIFICATE_CHAIN') await setIssuer(queries, id, undefined);
    return;
  }
  const certificate = checkIssuer(data.provisionConfiguration.provisionDeviceSecret ?? '');
  const nonce = proof ? provenNonce(profile.tenantId, certificate, proof) : randomBytes(32).toString('hex');
  await setIssuer(queries, id, { subject: subjectDigest(certificate.subject), nonce });
}

/** The statement that the key of the issuer signs. A signature for one tenant or purpose is invalid for every other. */
function statementOf(tenantId: string, nonce: string): string {
  return `millrace-issuer-proof:${tenantId}:${nonce}`;
}

/** The sender chooses the nonce. The statement names the tenant, so a signature for another tenant is refused. */
function provenNonce(tenantId: string, certificate: X509Certificate, { nonce, signature }: IssuerProof): string {
  const prefix = statementOf(tenantId, '');
  const chosen = nonce.startsWith(prefix) ? nonce.slice(prefix.length) : '';
  if (!/^[A-Za-z0-9_-]{32,128}$/.test(chosen)) {
    throw badRequest(
      'issuer_nonce',
      `The nonce of issuerProof must be "${prefix}" followed by 32 to 128 letters, digits, "-" or "_".`,
    );
  }
  checkSignature(certificate, nonce, signature);
  return chosen;
}

function checkSignature(certificate: X509Certificate, statement: string, signature: string): void {
  if (signature.length <= signatureCharsMax && isSigned(certificate, statement, signature)) return;
  const message = `The signature does not match "${statement}" and the key of the issuer (base64, SHA-256).`;
  throw badRequest('issuer_signature', message);
}

function noIssuer() {
  return badRequest('issuer_none', 'The profile has no issuer: its provisionType is not X509_CERTIFICATE_CHAIN.');
}

function shown(tenantId: string, issuer: Issuer): Issuer {
  return { ...issuer, nonce: statementOf(tenantId, issuer.nonce) };
}

export async function issuersOf(postgres: Postgres, tenantId: string, link: PageLink): Promise<Page<Issuer>> {
  const page = await listIssuers(postgres, tenantId, link);
  return { ...page, data: page.data.map((issuer) => shown(tenantId, issuer)) };
}

/**
 * `signature`: base64, of the statement as shown, by the key of the issuer; with SHA-256 where the type of key takes a
 * digest.
 */
export async function proveIssuer(
  postgres: Postgres,
  tenantId: string,
  profileId: string,
  signature: string,
): Promise<Issuer> {
  return await postgres.transaction(async (queries) => {
    const profile = await findFullProfile(queries, tenantId, profileId, 'lock');
    if (!profile) throw entityNotFound('Device profile', profileId);
    const issuer = await findIssuer(queries, tenantId, profileId);
    if (!issuer) throw noIssuer();
    const certificate = checkIssuer(profile.data.provisionConfiguration.provisionDeviceSecret ?? '');
    checkSignature(certificate, statementOf(tenantId, issuer.nonce), signature);
    await markProven(queries, profileId);
    const proven = await findIssuer(queries, tenantId, profileId);
    assert(proven, 'a locked profile is not deleted');
    return shown(tenantId, proven);
  });
}

function isSigned({ publicKey }: X509Certificate, statement: string, signature: string): boolean {
  const takesDigest = publicKey.asymmetricKeyType !== 'ed25519' && publicKey.asymmetricKeyType !== 'ed448';
  try {
    return verify(takesDigest ? 'sha256' : null, Buffer.from(statement), publicKey, Buffer.from(signature, 'base64'));
  } catch {
    // The type of key cannot sign.
    return false;
  }
}
