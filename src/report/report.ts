/**
 * Makes one report from its view and its request: takes a place in the pool, reads the view and the devices that the
 * caller may see from PostgreSQL, and merges filters and range.
 */
import type { TenantPrincipal } from '../auth/roles.ts';
import type { Clock } from '../base/clock.ts';
import { badRequest, type Fault, unavailable } from '../base/errors.ts';
import { limits } from '../base/limits.ts';
import type { Postgres } from '../postgres/client.ts';
import type { EncodedReport, ReportFormat } from './encode.ts';
import { findExpired } from './expired-store.ts';
import { keepSaved, stateOf } from './kept-attribute-store.ts';
import type { ReportOrder, ReportPool } from './pool.ts';
import { findOwnDevices } from './store.ts';
import {
  attributesOfView,
  type Filter,
  type ReportAttribute,
  type ReportRequest,
  rangeOf,
  type View,
  type ViewDefinition,
} from './view.ts';

export interface ReportDeps {
  postgres: Postgres;
  pool: ReportPool;
  clock: Clock;
  /** `TELEMETRY_TTL_DAYS`. */
  ttlDays: number;
  /** Called when the view names attributes that ClickHouse does not have yet. */
  onAttributesWanted: () => void;
  /** Returns the shard of each bucket; undefined with one server. */
  readShards: () => Promise<Uint8Array | undefined>;
}

/**
 * `findView` returns a saved view, or the definition of one for a preview. A report during which devices moved to other
 * shards is made again: it may lack their points. Their rows stay on the old shard until reads go to the new one, so a
 * map that is the same afterwards was right all the time.
 */
export async function makeReport(
  deps: ReportDeps,
  principal: TenantPrincipal,
  findView: () => Promise<View | ViewDefinition>,
  request: ReportRequest,
  format: ReportFormat,
  gone: AbortSignal,
): Promise<EncodedReport> {
  const { clock, pool, readShards } = deps;
  const deadline = clock.monotonic() + limits.reportAttributesMsMax;
  let shardOf: Uint8Array | undefined;
  const prepare = async () => {
    shardOf = await readShards();
    const view = await findView();
    const definition = { ...view, filters: reportFilters(view, request) };
    if (await attributesReady(deps, principal.tenantId, view, attributesOfView(definition))) {
      return { ...(await reportOrder(deps, principal, definition, request, format)), shardOf };
    }
    if (clock.monotonic() > deadline) {
      throw unavailable('report_attributes', 'The attributes of this view are still being copied. Try again later.', 5);
    }
    return undefined;
  };
  for (let tries = 0; tries < limits.reportMovesMax; tries += 1) {
    const report = await pool.run(principal, prepare, gone);
    if (shardOf === undefined || Buffer.compare(shardOf, (await readShards())!) === 0) return report;
  }
  throw unavailable('clickhouse_away', 'Devices are being moved between shards. Try again later.', 5);
}

async function reportOrder(
  deps: ReportDeps,
  { authority, tenantId, customerId }: TenantPrincipal,
  definition: ViewDefinition,
  request: ReportRequest,
  format: ReportFormat,
): Promise<ReportOrder> {
  const { postgres, clock, ttlDays } = deps;
  const now = clock.now();
  const range = reportRange(definition, request, now);
  const ownDevices =
    authority === 'CUSTOMER_USER' ? await findOwnDevices(postgres, customerId!, definition.scope) : null;
  if (ownDevices && ownDevices.length > limits.reportOwnDevicesMax) {
    throw badRequest(
      'report_devices',
      `More than ${limits.reportOwnDevicesMax} devices: narrow the scope of the view.`,
    );
  }
  const expired = await findExpired(postgres, tenantId, now, ttlDays);
  return { definition, ...range, now, expired, tenantId, ownDevices, format };
}

/** Returns the range: each bound of the request replaces that of the view. */
function reportRange(view: ViewDefinition, request: ReportRequest, now: number): { startTs: number; endTs: number } {
  const saved = rangeOf(view, now);
  const startTs = request.rangeStartTs ?? saved.startTs;
  const endTs = request.rangeEndTs ?? saved.endTs;
  if (startTs >= endTs) throw badRequest('report_range', 'The time range must begin before it ends.');
  return { startTs, endTs };
}

/**
 * Returns the filters. A request names filters of the view, or its fields, in any letter case. A name without values
 * changes nothing.
 */
function reportFilters(view: ViewDefinition, request: ReportRequest): Filter[] {
  const filters = [...view.filters];
  for (const { name, values } of request.filters) {
    const isNamed = (other: string) => other.toLowerCase() === name.toLowerCase();
    const n = filters.findIndex((filter) => isNamed(filter.name));
    if (n >= 0) {
      filters[n] = { ...filters[n]!, values };
      continue;
    }
    const field = view.fields.find(({ label, role }) => role !== 'VALUE' && isNamed(label));
    if (field && field.source !== 'LATENESS' && field.source !== 'COMPLETENESS')
      filters.push({ ...field, name: field.label, operation: 'IN', values });
    else if (values.length > 0) throw badRequest('report_filter', `The view has no filter "${name.slice(0, 64)}".`);
  }
  return filters;
}

/** Returns whether the attributes are copied, and has those of a saved view copied. */
async function attributesReady(
  { postgres, clock, onAttributesWanted }: ReportDeps,
  tenantId: string,
  view: View | ViewDefinition,
  attributes: ReportAttribute[],
): Promise<boolean> {
  const state = await stateOf(postgres, tenantId, attributes);
  if (state === 'ready') return true;
  if (state !== 'copying') {
    if (!('id' in view)) throw unsaved(state);
    // The view was saved by an earlier version, or its attributes were removed while it was being saved.
    await keepSaved(postgres, view, attributes, clock.now());
  }
  onAttributesWanted();
  return false;
}

function unsaved({ key }: ReportAttribute): Fault {
  const shown = JSON.stringify(key.slice(0, limits.viewLabelCharsMax));
  const message = `No saved view names the attribute ${shown}: save a view that does, then it can be shown in a preview.`;
  return badRequest('report_attribute_unsaved', message);
}
