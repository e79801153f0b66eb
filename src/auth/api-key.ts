/** API keys (docs/rest.md#api-keys): the types, and the functions that make and hash a value. */
import { createHash, randomBytes } from 'node:crypto';

export interface ApiKey {
  id: string;
  createdTime: number;
  /** Null: the key of a system administrator. */
  tenantId: string | null;
  userId: string;
  /** Epoch milliseconds; 0 = never. */
  expirationTime: number;
  description: string;
  enabled: boolean;
}

const randomBytesOfValue = 64;
/** A longer string is never a key and is not hashed. */
export const valueCharsMax = 256;

/** Returns a value, which is shown once. It has 512 random bits: it cannot be guessed from its plain hash. */
export function createValue(prefix: string): string {
  return prefix + randomBytes(randomBytesOfValue).toString('base64url');
}

export function sha256(text: string): Buffer {
  return createHash('sha256').update(text).digest();
}

export function isExpired({ expirationTime }: Pick<ApiKey, 'expirationTime'>, now: number): boolean {
  return expirationTime > 0 && expirationTime <= now;
}
