/**
 * Claiming: a device offers itself, and a customer user who knows its secret key gets the device
 * (docs/rest.md#claiming). Wrong keys are counted but do not end the offer, so a stranger cannot prevent the claim of
 * the owner.
 */

import {
  type ClaimRequest,
  claimKeys,
  claimOf,
  claimOfAttribute,
  isClaimValid,
  opensClaim,
} from '../admin/claim-rules.ts';
import { deleteClaim, findClaim, insertClaim } from '../admin/claim-store.ts';
import { rotateToken } from '../admin/credentials.ts';
import { type MoveDeps, moveDevice } from '../admin/customers.ts';
import { lostRaceAgain } from '../admin/devices.ts';
import { countTries, findTries, forgetTries } from '../admin/tries-store.ts';
import { type Attributes, ownValue } from '../attributes/attributes.ts';
import { permissionDenied, requireCustomerOf, type TenantPrincipal } from '../auth/roles.ts';
import { Fault, notFound } from '../base/errors.ts';
import { limits } from '../base/limits.ts';
import type { Log } from '../base/log.ts';
import type { Turns } from '../base/turns.ts';
import type { Device } from '../device/model/device.ts';
import type { LoggedChange } from '../device/sql/credential-log-store.ts';
import { findDevice, findDeviceByName, lockDevice } from '../device/sql/store.ts';
import type { Queries } from '../postgres/client.ts';
import { isForeignKeyViolation } from '../postgres/postgres-error.ts';
import { Kind, type TypedValue } from '../value/typed.ts';

export interface ClaimDeps extends MoveDeps {
  attributes: Attributes;
  log: Log;
  claiming: { durationMs: number; allowByDefault: boolean };
  /** Offers at once, by tenant and device. Absent where nothing is bounded. */
  turns?: Turns;
}

type ClaimOutcome = { response: 'SUCCESS'; device: Device } | { response: 'FAILURE' | 'CLAIMED' };

const { allowed: allowedKey, data: dataKey } = claimKeys;

/** Logs whether the device may be claimed now; the device gets no answer about that. */
export async function registerClaim(
  deps: ClaimDeps,
  device: { id: string; number: number; tenantId: string },
  request: ClaimRequest,
): Promise<void> {
  const work = () => registerNow(deps, device, request);
  await (deps.turns?.run(device.tenantId, `device ${device.number}`, work) ?? work());
}

async function registerNow(
  deps: ClaimDeps,
  device: { id: string; number: number },
  request: ClaimRequest,
): Promise<void> {
  const { postgres, attributes, clock, log, claiming } = deps;
  if (
    !claiming.allowByDefault &&
    !isTrue((await readServer(attributes, device.number, [allowedKey])).get(allowedKey))
  ) {
    log.info('claim_not_registered', { device: device.id, reason: 'claiming is not allowed for this device' });
    return;
  }
  const now = clock.now();
  const claim = claimOf(request, now, claiming.durationMs);
  const isRegistered = await insertClaim(postgres, device.id, claim, now).catch((error: unknown) => {
    // The device was deleted at this moment.
    if (isForeignKeyViolation(error)) return false;
    throw error;
  });
  if (!isRegistered) {
    log.info('claim_not_registered', { device: device.id, reason: 'it has a customer, or an earlier claim is valid' });
  }
}

/** Throws 404 when the device does not exist, 429 after too many wrong keys. */
export async function claimDevice(
  deps: ClaimDeps,
  caller: TenantPrincipal,
  name: string,
  secretKey: string,
): Promise<ClaimOutcome> {
  const { postgres, attributes, changes, clock, claiming } = deps;
  const found = await deviceNamed(postgres, caller, name);
  if (found.customerId !== null) return { response: 'CLAIMED' };
  const server = await readServer(attributes, found.number, [allowedKey, dataKey]);
  if (!claiming.allowByDefault && !isTrue(server.get(allowedKey))) return { response: 'FAILURE' };
  let change: LoggedChange[] = [];
  const outcome = await postgres.transaction(async (queries): Promise<ClaimOutcome> => {
    const device = await lockedDevice(queries, caller, found.id);
    if (device.customerId !== null) return { response: 'CLAIMED' };
    const now = clock.now();
    await checkTries(queries, device.id, now);
    const said = await findClaim(queries, device.id);
    const claim = isClaimValid(said, now) ? said : claimOfAttribute(server.get(dataKey));
    if (!isClaimValid(claim, now)) return { response: 'FAILURE' };
    if (!opensClaim(claim, secretKey)) {
      await countTries(queries, subjectOf(device.id), 1, now, limits.wrongClaimWindowMs);
      return { response: 'FAILURE' };
    }
    await deleteClaim(queries, device.id);
    await forgetTries(queries, subjectOf(device.id));
    const moved = await moveDevice(deps.clock, queries, device, caller.customerId);
    change = moved.change;
    return { response: 'SUCCESS', device: moved.device };
  });
  changes.publish(change);
  if (outcome.response === 'SUCCESS' && server.size > 0) {
    await attributes.remove(found.number, 'SERVER_SCOPE', [...server.keys()], caller.tenantId, 'server');
  }
  return outcome;
}

/**
 * Takes the device from its customer, after which the device may be claimed again. A customer user may return only
 * devices of the own customer, and cannot rotate the token: `rotates` is for administrators.
 */
export async function reclaimDevice(
  deps: ClaimDeps,
  caller: TenantPrincipal,
  name: string,
  rotates: boolean,
): Promise<Device> {
  if (rotates && caller.authority !== 'TENANT_ADMIN') throw permissionDenied();
  const { postgres, attributes, changes, claiming } = deps;
  const found = await deviceNamed(postgres, caller, name);
  const { device, change } = await postgres.transaction(async (queries) => {
    const stored = await lockedDevice(queries, caller, found.id);
    requireCustomerOf(caller, stored.customerId);
    if (stored.customerId === null && !rotates) return { device: stored, change: [] };
    const moved = await moveDevice(deps.clock, queries, stored, null);
    if (rotates) moved.change.push(...(await rotateToken(queries, stored, deps.clock.now())));
    return moved;
  }, lostRaceAgain);
  changes.publish(change);
  // The claim used up the permission.
  if (!claiming.allowByDefault) {
    const allowed = new Map([[allowedKey, ownValue.boolean(true)]]);
    await attributes.save(found.number, 'SERVER_SCOPE', allowed, caller.tenantId, 'server');
  }
  return device;
}

async function deviceNamed(queries: Queries, caller: TenantPrincipal, name: string): Promise<Device> {
  const device = name.includes('\0') ? undefined : await findDeviceByName(queries, caller.tenantId, name);
  if (!device) throw notFound("Requested item wasn't found!");
  return device;
}

async function lockedDevice(queries: Queries, caller: TenantPrincipal, id: string) {
  const locked = await lockDevice(queries, caller.tenantId, id);
  const device = locked && (await findDevice(queries, caller.tenantId, id));
  if (!device) throw notFound("Requested item wasn't found!");
  return device;
}

async function checkTries(queries: Queries, deviceId: string, now: number): Promise<void> {
  const { count, endsTime } = await findTries(queries, subjectOf(deviceId), now);
  if (count < limits.wrongClaimKeysMax) return;
  const seconds = Math.max(1, Math.ceil((endsTime - now) / 1000));
  const message = `Too many wrong claim keys for this device; try again in ${seconds} s.`;
  throw new Fault('claim_tries', message, seconds);
}

/** Names what the wrong keys of a device are tries of, among other tries. */
function subjectOf(deviceId: string): string {
  return `claim ${deviceId}`;
}

async function readServer(attributes: Attributes, device: number, keys: string[]): Promise<Map<string, TypedValue>> {
  const rows = await attributes.read(device, 'SERVER_SCOPE', keys);
  return new Map(rows.map(({ key, value }) => [key, value]));
}

function isTrue(value: TypedValue | undefined): boolean {
  return value?.kind === Kind.boolean && value.int === '1';
}
