/**
 * Makes thousands of devices in one call, in transactions of a thousand, with an outcome for each row. A row that fails
 * does not affect the others.
 */
import { badRequest, Fault, unavailable } from '../base/errors.ts';
import { limits } from '../base/limits.ts';
import { inTurns } from '../base/loop-turns.ts';
import { createUuid } from '../base/uuid.ts';
import { tokenCredentials } from '../device/model/credentials.ts';
import { checkDeviceName, checkDocument, checkText, createAccessToken } from '../device/model/device.ts';
import type { LoggedChange } from '../device/sql/credential-log-store.ts';
import { credentialsTaken } from '../device/sql/credentials-store.ts';
import { findTakenNames } from '../device/sql/store.ts';
import { devicesAssigned } from '../ota/assignment.ts';
import type { Queries } from '../postgres/client.ts';
import { isForeignKeyViolation, isUniqueViolation } from '../postgres/postgres-error.ts';
import { findTakenTokens, findTenantProfiles, holdCustomers, insertDevices } from './bulk-create-store.ts';
import { insertTokens } from './device-batch-store.ts';
import type { NewDeviceDeps } from './devices.ts';
import { admitDevices, deviceLimitReached } from './entity-limits.ts';
import { resolveProfileIds } from './profile-choice.ts';

export interface NewDeviceInput {
  name: string;
  /** Name of a profile, which is made when it is missing; '' = the default profile. */
  type: string;
  label: string | null;
  profileId: string | null;
  customerId: string | null;
  additionalInfo: unknown;
  /** '' = a random token. */
  accessToken: string;
}

export type NewDeviceOutcome = { id: string; accessToken: string } | Fault;

interface Row extends NewDeviceInput {
  /** True when the caller chose the token. */
  isChosen: boolean;
  id: string;
  index: number;
}

/** Returns the outcomes in the order of the inputs. Throws 503 when the database is unavailable. */
export async function createDevices(
  deps: NewDeviceDeps,
  tenantId: string,
  inputs: NewDeviceInput[],
): Promise<NewDeviceOutcome[]> {
  const outcomes: NewDeviceOutcome[] = new Array(inputs.length);
  const rows = await sound(inputs, deps.clock.now(), outcomes);
  for (let i = 0; i < rows.length; i += limits.newDevicesPerTransaction) {
    await createSome(deps, tenantId, rows.slice(i, i + limits.newDevicesPerTransaction), outcomes);
  }
  return outcomes;
}

/** Returns the rows that are valid without a check in the store; the faults of the other rows go into `outcomes`. */
async function sound(inputs: NewDeviceInput[], now: number, outcomes: NewDeviceOutcome[]): Promise<Row[]> {
  const names = new Set<string>();
  const tokens = new Set<string>();
  const rows: Row[] = [];
  await inTurns(inputs, (input, index) => {
    try {
      checkDeviceName(input.name);
      checkText('type', input.type);
      if (input.label) checkText('label', input.label);
      checkDocument('additionalInfo', input.additionalInfo);
      if (input.accessToken) tokenCredentials(input.accessToken);
      if (names.has(input.name)) throw nameTaken();
      if (tokens.has(input.accessToken)) throw credentialsTaken();
      names.add(input.name);
      if (input.accessToken) tokens.add(input.accessToken);
      const accessToken = input.accessToken || createAccessToken();
      rows.push({ ...input, accessToken, isChosen: input.accessToken !== '', id: createUuid(now), index });
    } catch (error) {
      if (!(error instanceof Fault)) throw error;
      outcomes[index] = error;
    }
  });
  return rows;
}

const triesMax = 3;

async function createSome(
  deps: NewDeviceDeps,
  tenantId: string,
  rows: Row[],
  outcomes: NewDeviceOutcome[],
): Promise<void> {
  const { postgres, changes, onAssigned } = deps;
  for (let tries = 1; ; tries += 1) {
    try {
      const profiles = await profilesOf(deps, tenantId, rows);
      const { published, assigned } = await postgres.transaction((queries) =>
        createInside(deps, queries, tenantId, rows, profiles, outcomes),
      );
      changes.publish(published);
      if (assigned) onAssigned?.();
      return;
    } catch (error) {
      // Another call took a token, or deleted a customer or a profile, after this call checked them.
      if (!isForeignKeyViolation(error) && !isUniqueViolation(error)) throw error;
      if (tries === triesMax)
        throw unavailable('devices_raced', 'Other calls are changing the same entities; try again.');
    }
  }
}

async function createInside(
  deps: Pick<NewDeviceDeps, 'clock' | 'limitsOf' | 'takenNames'>,
  queries: Queries,
  tenantId: string,
  rows: Row[],
  profiles: Map<Row, string>,
  outcomes: NewDeviceOutcome[],
): Promise<{ published: LoggedChange[]; assigned: boolean }> {
  const now = deps.clock.now();
  const { devicesMax } = deps.limitsOf(tenantId);
  const room = Math.max(0, await admitDevices(queries, tenantId, rows.length, devicesMax));
  const customerIds = [...new Set(rows.flatMap(({ customerId }) => customerId ?? []))];
  const customers = customerIds.length > 0 ? await holdCustomers(queries, tenantId, customerIds) : new Set<string>();
  const owned = rows.filter((row) => {
    const isCustomer = row.customerId === null || customers.has(row.customerId);
    if (!profiles.has(row)) outcomes[row.index] = profileUnknown();
    else if (!isCustomer) outcomes[row.index] = customerUnknown();
    return profiles.has(row) && isCustomer;
  });
  // A device that exists needs no room. Without a shortage the insert tells which names are taken.
  const free = room < owned.length ? await rowsWithFreeNames(queries, tenantId, owned, outcomes) : owned;
  const fit = await rowsThatFit(deps, queries, tenantId, free, { devicesMax, room }, outcomes);
  if (fit.length === 0) return { published: [], assigned: false };
  const inserted = await insertDevices(
    queries,
    tenantId,
    fit.map((row) => ({ ...row, profileId: profiles.get(row)!, additionalInfo: infoText(row.additionalInfo) })),
    now,
  );
  const numbers = new Map(inserted.map(({ id, number }) => [id, number]));
  const made: (Row & { number: number })[] = [];
  for (const row of fit) {
    const number = numbers.get(row.id);
    if (number !== undefined) made.push({ ...row, number });
    outcomes[row.index] = number === undefined ? nameTaken() : { id: row.id, accessToken: row.accessToken };
  }
  const tokens = made.map(({ id, number, accessToken }) => {
    return { id: createUuid(now), deviceId: id, deviceNumber: number, token: accessToken };
  });
  if (made.length === 0) return { published: [], assigned: false };
  const published = await insertTokens(queries, tokens, now);
  const ids = made.map(({ id }) => id);
  return { published, assigned: await devicesAssigned(queries, ids) };
}

async function rowsWithFreeNames(
  queries: Queries,
  tenantId: string,
  rows: Row[],
  outcomes: NewDeviceOutcome[],
): Promise<Row[]> {
  const names = rows.map(({ name }) => name);
  const taken = await findTakenNames(queries, tenantId, names);
  for (const { name, index } of rows) if (taken.has(name)) outcomes[index] = nameTaken();
  return rows.filter(({ name }) => !taken.has(name));
}

/** Returns the rows whose token is free and for which the tenant has room. The others get a refusal in `outcomes`. */
async function rowsThatFit(
  { takenNames }: Pick<NewDeviceDeps, 'takenNames'>,
  queries: Queries,
  tenantId: string,
  rows: Row[],
  { devicesMax, room }: { devicesMax: number; room: number },
  outcomes: NewDeviceOutcome[],
): Promise<Row[]> {
  const takenTokens = await findTakenTokens(
    queries,
    tenantId,
    rows.map(({ accessToken }) => accessToken),
  );
  const isOthers = ({ accessToken }: Row) => takenTokens.get(accessToken) === true;
  const counted =
    takenNames && rows.some(({ isChosen }) => isChosen)
      ? await takenNames.count(queries, tenantId, rows.filter(isOthers).length)
      : undefined;
  const fit: Row[] = [];
  let othersTokens = 0;
  for (const row of rows) {
    // Free or taken: after too many tokens of other tenants every chosen token gets the same refusal.
    if (row.isChosen && counted && othersTokens >= counted.remaining) {
      outcomes[row.index] = takenNames!.refusal(counted.endsTime);
    } else if (takenTokens.has(row.accessToken)) {
      outcomes[row.index] = credentialsTaken();
      if (isOthers(row)) othersTokens += 1;
    } else if (fit.length === room) outcomes[row.index] = deviceLimitReached(devicesMax);
    else fit.push(row);
  }
  return fit;
}

/** Returns the profile of each row. Rows that name a missing profile are left out. */
async function profilesOf(
  deps: Pick<NewDeviceDeps, 'postgres' | 'clock'>,
  tenantId: string,
  rows: Row[],
): Promise<Map<Row, string>> {
  const given = [...new Set(rows.flatMap(({ profileId }) => profileId ?? []))];
  const known = given.length > 0 ? await findTenantProfiles(deps.postgres, tenantId, given) : new Set<string>();
  const types = rows.filter(({ profileId }) => profileId === null).map(({ type }) => type);
  const ofType = await resolveProfileIds(deps, tenantId, types);
  const profiles = new Map<Row, string>();
  for (const row of rows) {
    const id = row.profileId ?? ofType.get(row.type);
    if (id !== undefined && (row.profileId === null || known.has(id))) profiles.set(row, id);
  }
  return profiles;
}

function infoText(info: unknown): string | null {
  return info === undefined || info === null ? null : JSON.stringify(info);
}

function nameTaken(): Fault {
  return badRequest('device_name_taken', 'Device with such name already exists!');
}

function profileUnknown(): Fault {
  return badRequest('profile_unknown', 'Device is referencing non existing device profile!');
}

function customerUnknown(): Fault {
  return badRequest('customer', "Can't assign device to non-existent customer!");
}
