/**
 * Devices that provision themselves by a certificate chain (docs/mqtt.md#certificates). A profile has the certificate
 * of an issuer whose key its tenant has proven to hold (`issuers.ts`). The issuer's signature makes a client with a
 * certificate the device that the common name gives, by the profile's regular expression. This file checks signatures
 * and dates: the handshake proved only that the client holds its key.
 */
import type { X509Certificate } from 'node:crypto';
import { createContext, Script } from 'node:vm';
import { insertNewDevice, type NewDeviceDeps } from '../admin/devices.ts';
import { readCertificate, subjectDigest } from '../admin/issuers.ts';
import type { WrongTries } from '../auth/wrong-tries.ts';
import { Fault } from '../base/errors.ts';
import { FifoMap } from '../base/fifo-map.ts';
import { limits } from '../base/limits.ts';
import type { Log } from '../base/log.ts';
import { networkOf } from '../base/network.ts';
import type { Turns } from '../base/turns.ts';
import { certificateCredentials, certificateId } from '../device/model/credentials.ts';
import { insertCredentialChanges, type LoggedChange } from '../device/sql/credential-log-store.ts';
import { findCredentials, updateCredentials } from '../device/sql/credentials-store.ts';
import { type ChainProfile, findChainProfiles, findUnnamedIssuers, nameIssuers } from '../device/sql/issuer-store.ts';
import { findDeviceByName, lockDevice } from '../device/sql/store.ts';
import type { Queries } from '../postgres/client.ts';
import { isForeignKeyViolation } from '../postgres/postgres-error.ts';

/** The certificates that a TLS client has sent. */
export interface ClientCertificate {
  leaf: X509Certificate;
  /** The certificates sent beside the leaf, from the leaf upwards. */
  issuers: X509Certificate[];
  /** PEM, as the credentials of a device store it. */
  pem: string;
  credentialsId: string;
}

interface CertificateProvisionDeps extends NewDeviceDeps {
  wrongKeys: WrongTries;
  /** Certificates that are looked up at once, by network. Absent where nothing is bounded. */
  turns?: Turns;
  log: Log;
}

/**
 * `made`: the certificate belongs to a device now. `unknown`: no profile accepts it. `failed`: a profile matches and
 * refuses it.
 */
type ChainOutcome = 'made' | 'unknown' | 'failed';

export function clientCertificate(leaf: X509Certificate, issuers: X509Certificate[]): ClientCertificate {
  const pem = leaf.toString();
  return { leaf, issuers, pem, credentialsId: certificateId(pem) };
}

/** True when the certificate is valid at `now`. */
export function isInForce(certificate: X509Certificate, now: number): boolean {
  return Date.parse(certificate.validFrom) <= now && now <= Date.parse(certificate.validTo);
}

export class CertificateProvisioner {
  readonly #deps: CertificateProvisionDeps;
  /** Digest → certificate of a profile; null = the certificate cannot be parsed. */
  readonly #issuers = new FifoMap<string, X509Certificate | null>(limits.chainIssuersMax);
  /** True once profiles of earlier versions have the digest of their issuer's name. */
  #areNamed = false;

  constructor(deps: CertificateProvisionDeps) {
    this.#deps = deps;
  }

  /** Throws 429 when the address has sent too many unknown certificates, 403 at the limit of devices. */
  async provision(certificate: ClientCertificate, remoteAddress: string): Promise<ChainOutcome> {
    const work = () => this.#provisionNow(certificate, remoteAddress);
    return await (this.#deps.turns?.run(networkOf(remoteAddress), null, work) ?? work());
  }

  async #provisionNow(certificate: ClientCertificate, remoteAddress: string): Promise<ChainOutcome> {
    const { wrongKeys, clock, log } = this.#deps;
    const profile = await wrongKeys.find(remoteAddress, () => this.#profileOf(certificate, clock.now()));
    if (!profile) return 'unknown';
    const name = deviceNameOf(certificate.leaf, profile.pattern);
    const outcome = name === undefined ? 'failed' : await this.#give(profile, name, certificate);
    log.info('provisioned_by_chain', { profile: profile.id, outcome });
    return outcome;
  }

  async #profileOf(certificate: ClientCertificate, now: number): Promise<ChainProfile | undefined> {
    const { postgres } = this.#deps;
    await this.#nameEarlier();
    const { leaf, issuers } = certificate;
    const names = [leaf, ...issuers].map(({ issuer }) => subjectDigest(issuer));
    const profiles = await findChainProfiles(postgres, [...new Set(names)], limits.chainProfilesPerTenantMax);
    const found = this.#issuedBy(certificate, profiles, now);
    const proven = found.find(({ isProven }) => isProven);
    if (proven) return proven;
    const [nearest] = found;
    if (found.every(({ tenantId }) => tenantId === nearest?.tenantId)) return nearest;
    this.#deps.log.warn('issuer_of_several_tenants', { profiles: found.map(({ id }) => id) });
    return undefined;
  }

  /** Runs once in an installation, after the update that finds issuers by name. */
  async #nameEarlier(): Promise<void> {
    const { postgres } = this.#deps;
    while (!this.#areNamed) {
      const rows = await findUnnamedIssuers(postgres, limits.chainIssuersNamedAtOnce);
      const subjects = rows.map(({ certificate }) => readCertificate(certificate ?? '')?.subject ?? '');
      await nameIssuers(
        postgres,
        rows.map(({ id }) => id),
        subjects.map(subjectDigest),
      );
      this.#areNamed = rows.length < limits.chainIssuersNamedAtOnce;
    }
  }

  /**
   * Returns the profiles whose certificate signed a link of the chain, the nearest link first. Each link must be signed
   * by the next one.
   */
  #issuedBy({ leaf, issuers }: ClientCertificate, profiles: ChainProfile[], now: number): ChainProfile[] {
    const found = new Set<ChainProfile>();
    let link = leaf;
    for (const next of [...issuers, undefined]) {
      for (const profile of profiles) {
        const issuer = this.#issuerOf(profile);
        if (issuer && signed(issuer, link, now)) found.add(profile);
      }
      if (!next || !signed(next, link, now)) break;
      link = next;
    }
    return [...found];
  }

  #issuerOf({ key, certificate }: ChainProfile): X509Certificate | null {
    let issuer = this.#issuers.get(key);
    if (issuer === undefined) {
      issuer = readCertificate(certificate) ?? null;
      this.#issuers.set(key, issuer);
    }
    return issuer;
  }

  async #give(profile: ChainProfile, name: string, certificate: ClientCertificate): Promise<ChainOutcome> {
    const { postgres, changes, onAssigned } = this.#deps;
    for (let attempt = 0; attempt < 2; attempt += 1) {
      try {
        const given = await postgres.transaction((queries) => this.#giveIn(queries, profile, name, certificate));
        if (!given) return 'failed';
        changes.publish(given.changes);
        if (given.assigned) onAssigned?.();
        return 'made';
      } catch (error) {
        // Another connection of the same device has made the device.
        if (error instanceof Fault && error.reason === 'device_name_taken' && attempt === 0) continue;
        if ((error instanceof Fault && error.status === 400) || isForeignKeyViolation(error)) return 'failed';
        throw error;
      }
    }
    return 'failed';
  }

  async #giveIn(
    queries: Queries,
    { id: profileId, tenantId, mayCreate }: ChainProfile,
    name: string,
    { pem }: ClientCertificate,
  ): Promise<{ changes: LoggedChange[]; assigned: boolean } | undefined> {
    const now = this.#deps.clock.now();
    const credentials = certificateCredentials(pem);
    const found = await findDeviceByName(queries, tenantId, name);
    if (!found) {
      if (!mayCreate) return undefined;
      const input = { name, profileId };
      const { change, assigned } = await insertNewDevice(
        queries,
        tenantId,
        input,
        credentials,
        now,
        this.#deps.limitsOf(tenantId).devicesMax,
      );
      return { changes: [change], assigned };
    }
    const locked = await lockDevice(queries, tenantId, found.id);
    const device = locked && (await findDeviceByName(queries, tenantId, name));
    const stored = device && (await findCredentials(queries, device.id));
    if (!stored || device.id !== found.id || device.profileId !== profileId) return undefined;
    if (stored.credentialsId === credentials.credentialsId) return { changes: [], assigned: false };
    await updateCredentials(queries, device.id, credentials);
    const change = { deviceId: device.id, deviceNumber: device.number, deleted: false };
    const changes = [stored.credentialsId, credentials.credentialsId].map((credentialsId) => ({
      ...change,
      credentialsId,
    }));
    return { changes: await insertCredentialChanges(queries, changes, now), assigned: false };
  }
}

/** Compares the names first, because checking a signature is slow. */
function signed(issuer: X509Certificate, link: X509Certificate, now: number): boolean {
  try {
    return link.checkIssued(issuer) && isInForce(issuer, now) && issuer.ca && link.verify(issuer.publicKey);
  } catch {
    // The type of key is not supported.
    return false;
  }
}

const commonNameCharsMax = 255;
/** A pattern that a tenant wrote may run without end on a name that a stranger chose. */
const matchMsMax = 20;
/** `matchMsMax` is wall time: a thread that got no processor in that time has not searched, and tries again. */
const matchTriesMax = 5;
const match = new Script(
  '{ const found = new RegExp(pattern).exec(text); found && (found.slice(1).find((group) => group !== undefined) ?? found[0]) }',
);

/**
 * Returns the first group that took part in the match, else the whole match; undefined when the pattern does not match.
 */
function deviceNameOf(leaf: X509Certificate, pattern: string): string | undefined {
  const { CN: text } = leaf.toLegacyObject().subject as { CN?: unknown };
  if (typeof text !== 'string' || text.length > commonNameCharsMax) return undefined;
  return nameIn(text, pattern);
}

export function nameIn(text: string, pattern: string): string | undefined {
  const context = createContext({ pattern, text });
  for (let tries = 1; ; tries += 1) {
    const before = process.cpuUsage();
    try {
      const name: unknown = match.runInContext(context, { timeout: matchMsMax });
      return typeof name === 'string' && name.trim() !== '' ? name.trim() : undefined;
    } catch (error) {
      // The usual error is an invalid regular expression. A timeout with little CPU time means that the process was not
      // scheduled: the match is tried again. The CPU time is that of all threads.
      const isTimeout = (error as { code?: unknown }).code === 'ERR_SCRIPT_EXECUTION_TIMEOUT';
      const { user, system } = process.cpuUsage(before);
      const hasSearched = (user + system) / 1000 > matchMsMax / 2;
      if (!isTimeout || hasSearched || tries === matchTriesMax) return undefined;
    }
  }
}
