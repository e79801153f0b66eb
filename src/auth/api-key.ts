/** API keys (docs/rest.md#api-keys): the types, and how a value is made and hashed. */
import { createHash, randomBytes } from 'node:crypto';

export interface ApiKey {
  id: string;
  createdTime: number;
  /** Null: of a system administrator. */
  tenantId: string | null;
  userId: string;
  /** Epoch milliseconds; 0 = never. */
  expirationTime: number;
  description: string;
  enabled: boolean;
}

const randomBytesOfValue = 64;
/** A longer text is no key, whatever the prefix: it is not worth hashing. */
export const valueCharsMax = 256;

/** Shown once, when it is made. 512 random bits: a plain hash of it cannot be guessed back. */
export function createValue(prefix: string): string {
  return prefix + randomBytes(randomBytesOfValue).toString('base64url');
}

export function sha256(text: string): Buffer {
  return createHash('sha256').update(text).digest();
}

export function isExpired({ expirationTime }: Pick<ApiKey, 'expirationTime'>, now: number): boolean {
  return expirationTime > 0 && expirationTime <= now;
}
