/**
 * Devices that provision themselves by a certificate chain (mqtt.md section 5): a profile holds the certificate of an
 * issuer, and whoever shows a certificate that it signed is the device that its common name says, by the profile's
 * regular expression. Signatures and dates are checked here, as the handshake checked no more than who owns the key.
 */
import { X509Certificate } from 'node:crypto';
import { createContext, Script } from 'node:vm';
import { Fault } from '../base/errors.ts';
import { limits } from '../base/limits.ts';
import type { Log } from '../base/log.ts';
import { AgedMap } from '../device/aged-map.ts';
import { certificateCredentials, certificateId } from '../device/credentials.ts';
import { type ChainProfile, findChainProfiles } from '../device/profile-store.ts';
import {
  findCredentials,
  findDeviceByName,
  insertCredentialChanges,
  type LoggedChange,
  lockDevice,
  updateCredentials,
} from '../device/store.ts';
import { isForeignKeyViolation, type Queries } from '../postgres/client.ts';
import { insertNewDevice } from './devices.ts';
import type { Guesses } from './guesses.ts';
import type { FleetParts } from './parts.ts';

/** What a TLS client has shown. */
export interface ClientCertificate {
  leaf: X509Certificate;
  /** What it sent beside it, upwards. */
  issuers: X509Certificate[];
  /** As the credentials of a device. */
  pem: string;
  credentialsId: string;
}

export interface ChainParts extends FleetParts {
  guesses: Guesses;
  log: Log;
}

/** `made`: the certificate opens a device now. `unknown`: no profile answers for it. `failed`: one does, but says no. */
export type ChainOutcome = 'made' | 'unknown' | 'failed';

export function clientCertificate(leaf: X509Certificate, issuers: X509Certificate[]): ClientCertificate {
  const pem = leaf.toString();
  return { leaf, issuers, pem, credentialsId: certificateId(pem) };
}

/** Is it neither expired nor of the future? */
export function isInForce(certificate: X509Certificate, now: number): boolean {
  return Date.parse(certificate.validFrom) <= now && now <= Date.parse(certificate.validTo);
}

export class Chains {
  readonly #parts: ChainParts;
  #profiles: Promise<ChainProfile[]> | undefined;
  #isReading = false;
  #readMs = 0;
  /** Digest → certificate of a profile; null = it cannot be read. */
  readonly #issuers = new AgedMap<string, X509Certificate | null>(limits.chainProfilesMax);

  constructor(parts: ChainParts) {
    this.#parts = parts;
  }

  /** Throws 429 when the address has shown too many strange certificates, 403 at the limit of devices. */
  async provision(certificate: ClientCertificate, remoteAddress: string): Promise<ChainOutcome> {
    const { guesses, clock, log } = this.#parts;
    const forgive = guesses.begin(remoteAddress);
    let profile: ChainProfile | undefined;
    try {
      const now = clock.now();
      profile =
        this.#issuedBy(certificate, await this.#readProfiles(limits.chainProfilesMs), now) ??
        // A profile that was saved a moment ago.
        this.#issuedBy(certificate, await this.#readProfiles(0), now);
    } catch (error) {
      forgive();
      throw error;
    }
    if (!profile) return 'unknown';
    forgive();
    const name = deviceNameOf(certificate.leaf, profile.pattern);
    const outcome = name === undefined ? 'failed' : await this.#give(profile, name, certificate);
    log.info('provisioned_by_chain', { profile: profile.id, outcome });
    return outcome;
  }

  /** At most so old; one read at a time, for all that come while it runs. */
  #readProfiles(ageMsMax: number): Promise<ChainProfile[]> {
    const { postgres, clock } = this.#parts;
    if (this.#profiles && (this.#isReading || clock.monotonic() - this.#readMs < ageMsMax)) return this.#profiles;
    this.#readMs = clock.monotonic();
    this.#isReading = true;
    this.#profiles = findChainProfiles(postgres, limits.chainProfilesMax).finally(() => {
      this.#isReading = false;
    });
    this.#profiles.catch(() => {
      this.#profiles = undefined;
    });
    return this.#profiles;
  }

  /** Up the chain, each link signed by the next, until a profile's certificate signed one. */
  #issuedBy({ leaf, issuers }: ClientCertificate, profiles: ChainProfile[], now: number): ChainProfile | undefined {
    let link = leaf;
    for (const next of [...issuers, undefined]) {
      const profile = profiles.find((each) => {
        const issuer = this.#issuerOf(each);
        return issuer && signed(issuer, link, now);
      });
      if (profile) return profile;
      if (!next || !signed(next, link, now)) return undefined;
      link = next;
    }
    return undefined;
  }

  #issuerOf({ key, certificate }: ChainProfile): X509Certificate | null {
    let issuer = this.#issuers.get(key);
    if (issuer === undefined) {
      issuer = readCertificate(certificate);
      this.#issuers.set(key, issuer);
    }
    return issuer;
  }

  async #give(profile: ChainProfile, name: string, certificate: ClientCertificate): Promise<ChainOutcome> {
    const { postgres, changes, onAssigned } = this.#parts;
    for (let attempt = 0; attempt < 2; attempt += 1) {
      try {
        const given = await postgres.transaction((queries) => this.#giveIn(queries, profile, name, certificate));
        if (!given) return 'failed';
        changes.publish(given.changes);
        if (given.assigned) onAssigned?.();
        return 'made';
      } catch (error) {
        // Another connection of the same device was quicker: then the device is there.
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
    const now = this.#parts.clock.now();
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
        this.#parts.devicesMax,
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

/** The names first: a signature is dear. */
function signed(issuer: X509Certificate, link: X509Certificate, now: number): boolean {
  try {
    return link.checkIssued(issuer) && isInForce(issuer, now) && issuer.ca && link.verify(issuer.publicKey);
  } catch {
    // A key of a kind that cannot be read here.
    return false;
  }
}

function readCertificate(text: string): X509Certificate | null {
  try {
    const isPem = text.includes('-----BEGIN');
    return new X509Certificate(isPem ? text : Buffer.from(text, 'base64'));
  } catch {
    return null;
  }
}

const commonNameCharsMax = 255;
/** A pattern that a tenant wrote may need time without end for a text that a stranger chose. */
const matchMsMax = 20;
const match = new Script(
  '{ const found = new RegExp(pattern).exec(text); found && (found.slice(1).find((group) => group !== undefined) ?? found[0]) }',
);

/** The first group of the pattern that took part, else what it matched; undefined when there is no name in it. */
export function deviceNameOf(leaf: X509Certificate, pattern: string): string | undefined {
  const { CN: text } = leaf.toLegacyObject().subject as { CN?: unknown };
  if (typeof text !== 'string' || text.length > commonNameCharsMax) return undefined;
  return nameIn(text, pattern);
}

export function nameIn(text: string, pattern: string): string | undefined {
  try {
    const name: unknown = match.runInContext(createContext({ pattern, text }), { timeout: matchMsMax });
    return typeof name === 'string' && name.trim() !== '' ? name.trim() : undefined;
  } catch {
    // No regular expression, or one that took too long.
    return undefined;
  }
}
