/**
 * Imports devices from a table: each row makes a device, or changes the device of that name, with credentials,
 * attributes and telemetry. A row that fails does not affect the others. An interrupted row may be sent again.
 */
import type { Attributes } from '../attributes/attributes.ts';
import type { Scope } from '../attributes/scope.ts';
import type { TenantPrincipal } from '../auth/roles.ts';
import { badRequest, Fault } from '../base/errors.ts';
import { limits } from '../base/limits.ts';
import { isObject } from '../base/schema.ts';
import type { NewCredentials } from '../device/model/credentials.ts';
import type { Device } from '../device/model/device.ts';
import { findCredentials } from '../device/sql/credentials-store.ts';
import { findDeviceByName, findDeviceRow, findTakenNames } from '../device/sql/store.ts';
import type { SaveSeries } from '../ingest/save-series.ts';
import { strictForm, type TypedValue } from '../value/typed.ts';
import { createDevices } from './bulk-create.ts';
import { type CredentialsDeps, saveCredentials } from './credentials.ts';
import { type ChangedDeviceDeps, createDevice, type NewDeviceDeps, saveDevice } from './devices.ts';

export interface ImportDeps extends NewDeviceDeps, ChangedDeviceDeps, CredentialsDeps {
  attributes: Attributes;
  saveSeries: SaveSeries;
}

/** One row. An absent value stays as it is, or takes its default. */
export interface ImportRow {
  name: string;
  type: string | undefined;
  label: string | undefined;
  description: string | undefined;
  isGateway: boolean | undefined;
  credentials: NewCredentials | undefined;
  attributes: { scope: Scope; key: string; value: TypedValue }[];
  series: { key: string; value: TypedValue }[];
}

type ImportOutcome = 'created' | 'updated' | Fault;

/** Returns the outcomes in the order of the rows. `mayUpdate` false: a row whose name exists is refused. */
export async function importDevices(
  deps: ImportDeps,
  caller: TenantPrincipal,
  rows: ImportRow[],
  mayUpdate: boolean,
): Promise<ImportOutcome[]> {
  const outcomes: ImportOutcome[] = new Array(rows.length);
  const names = [...new Set(rows.map(({ name }) => name))];
  const there = await findTakenNames(deps.postgres, caller.tenantId, names);
  await createPlain(deps, caller, rows, there, outcomes);
  // The other rows run one by one, several at once; rows of one name run in their order.
  const turns = new Map<string, Promise<void>>();
  let next = 0;
  const work = async (): Promise<void> => {
    for (let i = next++; i < rows.length; i = next++) {
      const row = rows[i]!;
      const outcome = outcomes[i];
      if (outcome instanceof Fault) continue;
      const before = turns.get(row.name);
      const turn = (async () => {
        await before;
        outcomes[i] = await outcomeOf(() => finish(deps, caller, row, outcome, mayUpdate));
      })();
      turns.set(row.name, turn);
      try {
        await turn;
      } catch (error) {
        // The import as a whole is refused: no further row starts.
        next = rows.length;
        throw error;
      }
    }
  };
  const ends = await Promise.allSettled(Array.from({ length: limits.importedAtOnce }, work));
  for (const end of ends) if (end.status === 'rejected') throw end.reason;
  return outcomes;
}

/** Makes new devices that have access tokens, a thousand at a time. */
async function createPlain(
  deps: ImportDeps,
  { tenantId }: TenantPrincipal,
  rows: ImportRow[],
  there: ReadonlySet<string>,
  outcomes: ImportOutcome[],
): Promise<void> {
  const made = new Set<string>();
  const plain = [...rows.entries()].filter(([, { name, credentials }]) => {
    if (there.has(name) || made.has(name) || (credentials && credentials.type !== 'ACCESS_TOKEN')) return false;
    made.add(name);
    return true;
  });
  const inputs = plain.map(([, row]) => ({
    name: row.name,
    type: row.type ?? '',
    label: row.label ?? null,
    profileId: null,
    customerId: null,
    additionalInfo: infoOf(row, null),
    accessToken: row.credentials?.credentialsId ?? '',
  }));
  const created = await createDevices(deps, tenantId, inputs);
  for (const [n, [index]] of plain.entries()) {
    const outcome = created[n]!;
    outcomes[index] = outcome instanceof Fault ? outcome : 'created';
  }
}

/** Applies the rest of a row to its device, or the whole row. */
async function finish(
  deps: ImportDeps,
  caller: TenantPrincipal,
  row: ImportRow,
  outcome: 'created' | 'updated' | undefined,
  mayUpdate: boolean,
): Promise<ImportOutcome> {
  const { tenantId } = caller;
  const stored = await findDeviceByName(deps.postgres, tenantId, row.name);
  if (outcome === undefined && stored && !mayUpdate) {
    throw badRequest('device_name_taken', 'Device with such name already exists!');
  }
  const device = stored ?? (await create(deps, tenantId, row));
  if (outcome === undefined && stored) await update(deps, caller, row, stored);
  await saveValues(deps, tenantId, device.id, device.number, row);
  return outcome ?? (stored ? 'updated' : 'created');
}

async function create(deps: ImportDeps, tenantId: string, row: ImportRow): Promise<Device> {
  const { name, type, label, credentials } = row;
  return await createDevice(deps, tenantId, { name, type, label, additionalInfo: infoOf(row, null) }, credentials);
}

async function update(deps: ImportDeps, caller: TenantPrincipal, row: ImportRow, stored: Device): Promise<void> {
  const isTyped = row.type !== undefined && row.type !== stored.type;
  // The version that was read is passed on: a change by another caller meanwhile fails the row and is kept.
  await saveDevice(deps, caller, stored.id, {
    ...stored,
    ...(isTyped && { type: row.type, profileId: null }),
    label: row.label ?? stored.label,
    additionalInfo: infoOf(row, stored.additionalInfo),
  });
  if (!row.credentials) return;
  const old = await findCredentials(deps.postgres, stored.id);
  if (!old) return;
  const { tenantId } = caller;
  await saveCredentials(deps, tenantId, { id: old.id, deviceId: stored.id, credentials: row.credentials });
}

async function saveValues(
  { postgres, attributes, saveSeries }: ImportDeps,
  tenantId: string,
  deviceId: string,
  number: number,
  row: ImportRow,
): Promise<void> {
  const scopes = new Set(row.attributes.map(({ scope }) => scope));
  for (const scope of scopes) {
    const entries = row.attributes
      .filter((each) => each.scope === scope)
      .map(({ key, value }) => [key, value] as const);
    await attributes.save(number, scope, new Map(entries), tenantId);
  }
  if (row.series.length === 0) return;
  const device = await findDeviceRow(postgres, tenantId, deviceId);
  const members = row.series.map(({ key, value }) => `${JSON.stringify(key)}:${strictForm(value)}`);
  if (device) await saveSeries(device, Buffer.from(`{${members.join(',')}}`));
}

function infoOf({ description, isGateway }: ImportRow, stored: unknown): unknown {
  if (description === undefined && isGateway === undefined) return stored;
  const info = isObject(stored) ? stored : {};
  return {
    ...info,
    ...(description !== undefined && { description }),
    ...(isGateway !== undefined && { gateway: isGateway }),
  };
}

async function outcomeOf(work: () => Promise<ImportOutcome>): Promise<ImportOutcome> {
  try {
    return await work();
  } catch (error) {
    // A store that does not answer fails the whole import, not the row.
    if (error instanceof Fault && error.status < 500) return error;
    throw error;
  }
}
