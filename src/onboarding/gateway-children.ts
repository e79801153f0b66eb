/**
 * The devices of gateways, by name: found, or made, many at once. Whatever a gateway makes has its customer, a random
 * token, a relation `Created` from the gateway, and is committed when this returns. Two that make the same names at
 * once, on whatever worker or host, make each one once, and both get it; at the limit of devices the first ones are
 * made.
 */

import type { AdminDeps } from '../admin/deps.ts';
import {
  findNames,
  findProfileIds,
  insertChildren,
  insertProfiles,
  insertTokens,
  type NamedRow,
  type NewChild,
  updateInfos,
} from '../admin/device-batch-store.ts';
import { admitDevices, deviceLimitReached } from '../admin/device-limit.ts';
import { resolveProfile } from '../admin/profiles.ts';
import { insertCreated } from '../admin/relation-store.ts';
import { Fault, unavailable } from '../base/errors.ts';
import { createUuid } from '../base/uuid.ts';
import type { DeviceRow } from '../device/cached-device.ts';
import { checkDeviceName, checkText, createAccessToken } from '../device/device.ts';
import type { LoggedChange } from '../device/store.ts';
import { devicesAssigned } from '../ota/assignment.ts';
import { isForeignKeyViolation, isLostRace, type Queries } from '../postgres/client.ts';

/**
 * `type`: name of the profile of a device that is made; '' = the default one. `actsFor`: whether the gateway acts for a
 * device that exists. The device of another customer is found, and nothing of it is changed.
 */
export interface ChildRequest {
  gatewayId: string;
  name: string;
  type: string;
  actsFor: (row: DeviceRow) => boolean;
}

export type ChildOutcomes = Map<string, DeviceRow | Fault>;

const triesMax = 3;

/** An outcome for each name; names are asked for once. Throws 503 when the database is unavailable. */
export async function findOrCreateChildren(
  deps: AdminDeps,
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
    // Those that another transaction made meanwhile.
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
    if (error instanceof Fault) return error;
    throw error;
  }
}

/** Fills `outcomes` and gives back those that are not there. */
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
    const { info: _, ...device } = row;
    outcomes.set(request.name, device);
  }
  if (moved.length > 0) await rememberGateways(postgres, moved);
  return missing;
}

async function rememberGateways(postgres: Queries, moved: Parameters<typeof updateInfos>[1]): Promise<void> {
  try {
    await updateInfos(postgres, moved);
  } catch (error) {
    // Two gateways that connect the same devices at once: one of them was the last, whichever.
    if (!isLostRace(error)) throw error;
  }
}

/** Additional info that names the gateway; undefined when it does already, is too long, or nothing that can hold it. */
function infoBehind({ id, info }: NamedRow, gatewayId: string): string | undefined {
  if (info === undefined) return undefined;
  const members: unknown = info === null ? {} : JSON.parse(info);
  if (typeof members !== 'object' || members === null || Array.isArray(members)) return undefined;
  const { lastConnectedGateway } = members as { lastConnectedGateway?: unknown };
  if (lastConnectedGateway === gatewayId || id === gatewayId) return undefined;
  return JSON.stringify({ ...members, lastConnectedGateway: gatewayId });
}

async function create(
  deps: AdminDeps,
  tenantId: string,
  requests: ChildRequest[],
  outcomes: ChildOutcomes,
): Promise<void> {
  const { postgres, changes, onAssigned } = deps;
  try {
    const profiles = await resolveProfiles(deps, tenantId, requests);
    const { published, assigned } = await postgres.transaction((queries) =>
      createInside(deps, queries, tenantId, requests, profiles, outcomes),
    );
    changes.publish(published);
    if (assigned) onAssigned?.();
  } catch (error) {
    // A gateway, a customer or a profile that was deleted at this moment, or two transactions in each other's way: what
    // was made is undone, and tried again.
    if (!isForeignKeyViolation(error) && !isLostRace(error)) throw error;
    for (const { name } of requests) outcomes.delete(name);
  }
}

async function createInside(
  { clock, devicesMax }: AdminDeps,
  queries: Queries,
  tenantId: string,
  requests: ChildRequest[],
  profiles: Map<string, string>,
  outcomes: ChildOutcomes,
): Promise<{ published: LoggedChange[]; assigned: boolean }> {
  const now = clock.now();
  const admitted = await admit(queries, tenantId, requests, devicesMax, outcomes);
  if (admitted.length === 0) return { published: [], assigned: false };
  const children = admitted.flatMap(({ gatewayId, name, type }): NewChild[] => {
    const profileId = profiles.get(type);
    // Deleted since it was looked for: the next try makes it again.
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
  for (const { gatewayId: _, ...row } of made) outcomes.set(row.name, row);
  return { published, assigned };
}

/** The first requests that fit under the device limit; names that other callers created meanwhile do not count. */
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

/** Ids of profiles by the types that are asked for; what is missing is made, exactly once, before the devices. */
async function resolveProfiles(
  { postgres, clock }: AdminDeps,
  tenantId: string,
  requests: ChildRequest[],
): Promise<Map<string, string>> {
  const types = new Set(requests.map(({ type }) => type));
  const names = [...types].filter((type) => type.trim() !== '');
  const known = names.length > 0 ? await findProfileIds(postgres, tenantId, names) : new Map<string, string>();
  const missing = names.filter((name) => !known.has(name));
  if (missing.length > 0) {
    const now = clock.now();
    const profiles = missing.map((name) => ({ id: createUuid(now), name }));
    await insertProfiles(postgres, tenantId, profiles, now);
    for (const [name, id] of await findProfileIds(postgres, tenantId, missing)) known.set(name, id);
  }
  for (const type of types) {
    if (type.trim() === '') known.set(type, (await resolveProfile(postgres, tenantId, null, '')).id);
  }
  return known;
}
