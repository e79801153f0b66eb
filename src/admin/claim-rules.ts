/**
 * The rules of claiming that need no store: what a device sends, which claim is valid, which key matches
 * (docs/http.md#claiming).
 */
import { createHash, timingSafeEqual } from 'node:crypto';
import { badRequest } from '../base/errors.ts';
import { type Json, JsonNumber, readJson } from '../value/json.ts';
import type { ReadBody } from '../value/lenient.ts';
import { Kind, type TypedValue } from '../value/typed.ts';

/**
 * Server attributes by which an administrator allows the claim of a device (`true`) and offers it (see
 * `claimOfAttribute`). Users of a customer must not write these attributes: they could claim the device again after
 * losing it.
 */
export const claimKeys = { allowed: 'claimingAllowed', data: 'claimingData' } as const;

/** A device's request to be claimed. `durationMs` 0 = the duration of the setting. */
export interface ClaimRequest {
  secretKey: string;
  durationMs: number;
}

/** An open claim: a user who knows the secret may claim the device until the expiry. */
export interface Claim {
  secretSha256: Buffer;
  expiresTime: number;
}

/** Decodes the body of a claim request. An empty body is a request without members. */
export function decodeClaim(body: Buffer, readBody: ReadBody): ClaimRequest {
  return claimRequest(body.length === 0 ? new Map() : readBody(body, readJson));
}

export function claimRequest(root: Json): ClaimRequest {
  if (!(root instanceof Map)) throw badRequest('claim_shape', 'A claim must be a JSON object.');
  const secretKey = root.get('secretKey') ?? '';
  const duration = root.get('durationMs') ?? new JsonNumber('0');
  if (typeof secretKey !== 'string') throw badRequest('claim_secret', 'Member "secretKey" must be a string.');
  if (!(duration instanceof JsonNumber)) throw badRequest('claim_duration', 'Member "durationMs" must be a number.');
  return { secretKey, durationMs: Math.max(0, Math.floor(Number(duration.literal))) };
}

export function claimOf(request: ClaimRequest, now: number, defaultMs: number): Claim {
  const expiresTime = Math.min(now + (request.durationMs || defaultMs), Number.MAX_SAFE_INTEGER);
  return { secretSha256: digest(request.secretKey), expiresTime };
}

/** Reads server attribute `claimingData`, which a user wrote: `{"secretKey":"plum","expirationTime":1760000900000}`. */
export function claimOfAttribute(value: TypedValue | undefined): Claim | undefined {
  if (value?.kind !== Kind.json && value?.kind !== Kind.string) return undefined;
  let members: unknown;
  try {
    members = JSON.parse(value.text);
  } catch {
    return undefined;
  }
  if (typeof members !== 'object' || members === null) return undefined;
  const { secretKey = '', expirationTime } = members as Record<string, unknown>;
  if (typeof secretKey !== 'string' || typeof expirationTime !== 'number') return undefined;
  return { secretSha256: digest(secretKey), expiresTime: expirationTime };
}

export function isClaimValid(claim: Claim | undefined, now: number): claim is Claim {
  return claim !== undefined && claim.expiresTime > now;
}

/** A secret that is absent counts as the empty string, in the open claim and in the key of the user. */
export function opensClaim(claim: Claim, secretKey: string): boolean {
  return timingSafeEqual(claim.secretSha256, digest(secretKey));
}

/** Hashes the secret: the store then holds a value of fixed length that reveals no secret. */
function digest(secretKey: string): Buffer {
  return createHash('sha256').update(secretKey).digest();
}
