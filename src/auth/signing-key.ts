/**
 * The secret of the installation, the same on all hosts: signs JWTs (`jwt.ts`) and receipts (`ingest/receipts.ts`).
 * From the settings, otherwise from PostgreSQL, where the first host stored it for all.
 */
import { randomBytes } from 'node:crypto';
import { StartError } from '../base/errors.ts';
import type { Postgres } from '../postgres/client.ts';
import { isAway } from '../postgres/postgres-error.ts';
import { findOrInsertSetting } from '../postgres/stored-settings.ts';

const bytesMin = 64;

export class SigningKey {
  readonly #postgres: Postgres;
  readonly #configured: string;
  /** Undefined until it was read. */
  known: Uint8Array | undefined = undefined;

  constructor(postgres: Postgres, configured: string) {
    this.#postgres = postgres;
    this.#configured = configured;
  }

  /** Throws the fault of PostgreSQL while the key cannot be read, and a StartError for a malformed key. */
  async read(): Promise<Uint8Array> {
    if (this.known !== undefined) return this.known;
    const fresh = randomBytes(bytesMin).toString('base64');
    const text = this.#configured || (await findOrInsertSetting(this.#postgres, 'jwt.signingKey', fresh));
    this.known = parseSigningKey(text);
    return this.known;
  }
}

/** Throws a StartError, which does not show the key, for a malformed one. */
export function parseSigningKey(text: string): Uint8Array {
  const key = Buffer.from(text, 'base64');
  if (/^[A-Za-z0-9+/_-]+={0,2}$/.test(text) && key.length >= bytesMin) return key;
  throw new StartError(
    `Setting auth.signingKey (JWT_TOKEN_SIGNING_KEY) must be the base64 of at least ${bytesMin} bytes.`,
  );
}

/** Returns the key, read if PostgreSQL answers; otherwise the first use reads it. */
export async function openSigningKey(postgres: Postgres, configured: string): Promise<SigningKey> {
  const key = new SigningKey(postgres, configured);
  try {
    await key.read();
  } catch (error) {
    if (!isAway(error)) throw error;
  }
  return key;
}
