/**
 * Finds or makes the devices of gateways by name, many at once. A made device has the gateway's customer, a random
 * token and a relation `Created` from the gateway, and is committed when this call returns. Two callers that make the
 * same names at once, on any worker or host, make each device once and both get it. At the limit of devices the first
 * names are made.
 */

import { insertTokens } from '../admin/device-batch-store.ts';
import type { NewDeviceDeps } from '../admin/devices.ts';
import { admitDevices, deviceLimitReached } from '../admin/entity-limits.ts';
import { resolveProfileIds } from '../admin/profile-choice.ts';
import { insertCreated } from '../admin/relation-store.ts';
import { type Fault, faultOrThrow, unavailable } from '../base/errors.ts';
import { createUuid } from '../base/uuid.ts';
import { countDevices } from '../device/list/list-store.ts';
import type { DeviceRow } from '../device/model/cached-device.ts';
import { checkDeviceName, checkText, createAccessToken } from '../device/model/device.ts';
import { compactDevice } from '../device/model/device-row.ts';
import type { LoggedChange } from '../device/sql/credential-log-store.ts';
import { devicesAssigned } from '../ota/assignment.ts';
import type { Queries } from '../postgres/client.ts';
import { isForeignKeyViolation, isLostRace } from '../postgres/postgres-error.ts';
import { findNames, insertChildren, type NamedRow, type NewChild, updateInfos } from './gateway-children-store.ts';

/**
 * `type`: name of the profile for a device that is made; '' = the default profile. `actsFor`: whether the gateway acts
 * for a device that exists. The device of another customer is found but not changed.
 */
export interface ChildRequest {
  gatewayId: string;
  name: string;
  type: string;
  actsFor: (row: DeviceRow) => boolean;
}

export type ChildOutcomes = Map<string, DeviceRow | Fault>;

type ChildrenDeps = Omit<NewDeviceDeps, 'takenNames'>;

const triesMax = 3;

/** Returns an outcome for each name; each name is given once. Throws 503 when the database is unavailable. */
export async function findOrCreateChildren(
  deps: ChildrenDeps,
  tenantId: string,
  requests: ChildRequest[],
): Promise<ChildOutcomes> {
  const outcomes: ChildOutcomes = new Map();
  const valid = requests.filter((request) => {
    const fault = faultOf(request);
    if (fault) outcomes.set(request.name, fault);
    return !fault;
  });
  let missing = await findExisting(deps.postgres, tenantId, valid, outcomes);
  for (let tries = 0; missing.length > 0 && tries < triesMax; tries += 1) {
    await create(deps, tenantId, missing, outcomes);
    // Devices that another transaction made meanwhile.
    missing = missing.filter(({ name }) => !outcomes.has(name));
    missing = await findExisting(deps.postgres, tenantId, missing, outcomes);
  }
  for (const { name } of missing) outcomes.set(name, notCreated);
  return outcomes;
}

const notCreated = unavailable('child_not_created', 'The device could not be made at this moment; send again.');

function faultOf({ name, type }: ChildRequest): Fault | undefined {
  try {
    checkDeviceName(name);
    checkText('type', type);
    return undefined;
  } catch (error) {
    return faultOrThrow(error);
  }
}

/** Fills `outcomes` and returns the names that do not exist. */
async function findExisting(
  postgres: Queries,
  tenantId: string,
  requests: ChildRequest[],
  outcomes: ChildOutcomes,
): Promise<ChildRequest[]> {
  if (requests.length === 0) return [];
  const rows = await findNames(
    postgres,
    tenantId,
    requests.map(({ name }) => name),
  );
  const stored = new Map(rows.map((row) => [row.name, row]));
  const moved: { id: string; from: string | null; to: string }[] = [];
  const missing: ChildRequest[] = [];
  for (const request of requests) {
    const row = stored.get(request.name);
    if (!row) {
      missing.push(request);
      continue;
    }
    const to = request.actsFor(row) ? infoBehind(row, request.gatewayId) : undefined;
    if (to !== undefined) moved.push({ id: row.id, from: row.info ?? null, to });
    outcomes.set(request.name, compactDevice(row));
  }
  if (moved.length > 0) await rememberGateways(postgres, moved);
  return missing;
}

async function rememberGateways(postgres: Queries, moved: Parameters<typeof updateInfos>[1]): Promise<void> {
  try {
    await updateInfos(postgres, moved);
  } catch (error) {
    // Two gateways connect the same devices at once: either one may be the last.
    if (!isLostRace(error)) throw error;
  }
}

/**
 * Returns additional info that names the gateway; undefined when the info of the device names the gateway already, is
 * too long, or is not an object.
 */
function infoBehind({ id, info }: NamedRow, gatewayId: string): string | undefined {
  if (info === undefined) return undefined;
  const members: unknown = info === null ? {} : JSON.parse(info);
  if (typeof members !== 'object' || members === null || Array.isArray(members)) return undefined;
  const { lastConnectedGateway } = members as { lastConnectedGateway?: unknown };
  if (lastConnectedGateway === gatewayId || id === gatewayId) return undefined;
  return JSON.stringify({ ...members, lastConnectedGateway: gatewayId });
}

async function create(
  deps: ChildrenDeps,
  tenantId: string,
  requests: ChildRequest[],
  outcomes: ChildOutcomes,
): Promise<void> {
  const { postgres, changes, onAssigned } = deps;
  try {
    // A profile that is missing is made only for a device for which there is room.
    const types = (await withRoom(deps, tenantId, requests)).map(({ type }) => type);
    const profiles = await resolveProfileIds(deps, tenantId, types);
    const { published, assigned } = await postgres.transaction((queries) =>
      createInside(deps, queries, tenantId, requests, profiles, outcomes),
    );
    changes.publish(published);
    if (assigned) onAssigned?.();
  } catch (error) {
    // Another transaction deleted a gateway, customer or profile at this moment, or won a race: the transaction is
    // rolled back and tried again.
    if (!isForeignKeyViolation(error) && !isLostRace(error)) throw error;
    for (const { name } of requests) outcomes.delete(name);
  }
}

/** Returns the first requests for which there is room now; `admit` decides exactly. */
async function withRoom(
  { postgres, limitsOf }: Pick<ChildrenDeps, 'postgres' | 'limitsOf'>,
  tenantId: string,
  requests: ChildRequest[],
): Promise<ChildRequest[]> {
  const { devicesMax } = limitsOf(tenantId);
  if (devicesMax === 0) return requests;
  return requests.slice(0, Math.max(0, devicesMax - (await countDevices(postgres, tenantId))));
}

async function createInside(
  { clock, limitsOf }: Pick<ChildrenDeps, 'clock' | 'limitsOf'>,
  queries: Queries,
  tenantId: string,
  requests: ChildRequest[],
  profiles: Map<string, string>,
  outcomes: ChildOutcomes,
): Promise<{ published: LoggedChange[]; assigned: boolean }> {
  const now = clock.now();
  const admitted = await admit(queries, tenantId, requests, limitsOf(tenantId).devicesMax, outcomes);
  if (admitted.length === 0) return { published: [], assigned: false };
  const children = admitted.flatMap(({ gatewayId, name, type }): NewChild[] => {
    const profileId = profiles.get(type);
    // The profile was deleted after its lookup. The next try makes the profile again.
    if (profileId === undefined) return [];
    const info = JSON.stringify({ lastConnectedGateway: gatewayId });
    return [{ id: createUuid(now), gatewayId, profileId, name, info }];
  });
  const made = await insertChildren(queries, tenantId, children, now);
  if (made.length === 0) return { published: [], assigned: false };
  const tokens = made.map(({ id, number }) => ({
    id: createUuid(now),
    deviceId: id,
    deviceNumber: number,
    token: createAccessToken(),
  }));
  const published = await insertTokens(queries, tokens, now);
  await insertCreated(queries, made);
  const assigned = await devicesAssigned(
    queries,
    made.map(({ id }) => id),
  );
  for (const row of made) outcomes.set(row.name, compactDevice(row));
  return { published, assigned };
}

/**
 * Returns the first requests that fit under the device limit; names that other callers created meanwhile do not count.
 */
async function admit(
  queries: Queries,
  tenantId: string,
  requests: ChildRequest[],
  devicesMax: number,
  outcomes: ChildOutcomes,
): Promise<ChildRequest[]> {
  if (devicesMax === 0) return requests;
  const room = await admitDevices(queries, tenantId, requests.length, devicesMax);
  if (room >= requests.length) return requests;
  const rows = await findNames(
    queries,
    tenantId,
    requests.map(({ name }) => name),
  );
  const taken = new Set(rows.map(({ name }) => name));
  const missing = requests.filter(({ name }) => !taken.has(name));
  const fault = deviceLimitReached(devicesMax);
  for (const { name } of missing.slice(Math.max(0, room))) outcomes.set(name, fault);
  return missing.slice(0, Math.max(0, room));
}
