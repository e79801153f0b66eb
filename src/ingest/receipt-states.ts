/**
 * What has become of the message of a receipt (docs/rest.md#receipts), derived at the time of the question: from how
 * far the journal is stored (PostgreSQL, all hosts), from the points in ClickHouse, and from the rows that ClickHouse
 * refused. The journal is read first: what it calls stored is in ClickHouse or refused when the later reads begin.
 */
import type { Clock } from '../base/clock.ts';
import { Fault } from '../base/errors.ts';
import type { ShardReads } from '../clickhouse/shards.ts';
import { expiredBefore } from '../device/sql/telemetry-days-store.ts';
import type { Postgres } from '../postgres/client.ts';
import { orderOfVersion, versionOf } from '../telemetry/block.ts';
import { readWrittenPoints, type WrittenPoint } from '../telemetry/points-query.ts';
import { readStoredOrder } from './journal-store.ts';
import { orderMs, writerOf } from './order-number.ts';
import type { Receipt, ReceiptPoint } from './receipt.ts';
import { type FoundPoints, type RefusedPoints, refusedStates } from './refused-points.ts';

/** In this order: the state of a message is the last one that any of its named points has. */
export const pointStates = [
  'stored',
  'replaced',
  'deleted',
  'expired',
  'journaled',
  'accepted',
  ...refusedStates,
  'unknown',
  'missing',
] as const;
type PointState = (typeof pointStates)[number];

/** `unknown`: the journal was removed after all of it was stored, or its host has not reported for days. */
export const journalStates = ['waiting', 'stored', 'unknown'] as const;
type JournalState = (typeof journalStates)[number];

/** The write that took the place of a point. */
interface Replacement {
  order: bigint;
  /** Milliseconds at which it arrived, by the clock of its server. */
  receivedTime: number;
}

export interface NamedState {
  point: ReceiptPoint;
  state: PointState;
  replacedBy: Replacement | undefined;
  /** Why ClickHouse does not have the point. */
  reason: string | undefined;
}

interface ReceiptStates {
  state: PointState;
  journal: JournalState;
  /** Milliseconds at which the whole message was in ClickHouse, the earliest known ones. */
  storedBefore: number | undefined;
  named: NamedState[];
}

interface ReceiptStatesDeps {
  postgres: Postgres;
  shards: ShardReads;
  refusedPoints: Pick<RefusedPoints, 'find'>;
  clock: Clock;
  /** `TELEMETRY_TTL_DAYS`; 0 = no limit. */
  ttlDays: number;
}

/**
 * `deviceOf` returns undefined for devices that were deleted. Throws 503 when the answer needs a store that is
 * unavailable.
 */
export async function readReceiptStates(
  { postgres, shards, refusedPoints, clock, ttlDays }: ReceiptStatesDeps,
  receipt: Receipt,
  deviceOf: (device: number) => { telemetryDays: number | null } | undefined,
): Promise<ReceiptStates> {
  const { order, lastOrder, named } = receipt;
  const { isStored, mayBeHeld, storedBefore } = await readStoredOrder(postgres, writerOf(order), lastOrder);
  const waits = isStored === false;
  const stateIn = (written: Written | undefined, point: ReceiptPoint): NamedState | undefined => {
    // The points of a deleted device leave ClickHouse later, and no read shows them until then.
    const device = deviceOf(point.device);
    if (device === undefined) return inState(point, 'deleted');
    const limit = expiredBefore(clock.now(), ttlDays, device.telemetryDays);
    if (limit !== undefined && point.ts < limit) return inState(point, 'expired');
    const found = written?.get(nameOf(point, versionOf(order, point.ts)));
    return found && stateOfWritten(receipt, point, found);
  };
  const written = await readPoints(shards, named, waits);
  const shown = named.map((point) => stateIn(written, point));
  const open = named.filter((_, i) => shown[i] === undefined);
  const isAsked = open.length > 0 && (!waits || mayBeHeld);
  const refused = isAsked ? await refusedPoints.find(order, open) : noneFound;
  // A row leaves the suspects or the quarantine after ClickHouse has it.
  const again = isAsked && !waits && refused.points.size < open.length;
  const writtenLater = again ? await readPoints(shards, open, waits) : undefined;
  const stateOfOpen = (point: ReceiptPoint): NamedState => {
    const found = refused.points.get(open.indexOf(point));
    if (found) return inState(point, found.state, found.reason);
    return stateIn(writtenLater, point) ?? inState(point, stateOfAbsent(receipt, isStored, refused));
  };
  const states = named.map((point, i) => shown[i] ?? stateOfOpen(point));
  const isAllFound = receipt.points === states.length && states.every(({ state }) => state === 'stored');
  return {
    state: pointStates[Math.max(0, ...states.map(({ state }) => pointStates.indexOf(state)))]!,
    journal: isStored === undefined ? 'unknown' : isStored ? 'stored' : 'waiting',
    storedBefore: storedBefore ?? (isAllFound ? clock.now() : undefined),
    named: states,
  };
}

type Written = Map<string, WrittenPoint>;

const noneFound: FoundPoints = { isComplete: false, points: new Map() };

function inState(point: ReceiptPoint, state: PointState, reason?: string): NamedState {
  return { point, state, replacedBy: undefined, reason };
}

/** Returns the state of a point that is neither in ClickHouse nor among the refused rows, as far as these were read. */
function stateOfAbsent({ ack }: Receipt, isStored: boolean | undefined, { isComplete }: FoundPoints): PointState {
  if (isStored === false) return ack === 'memory' ? 'accepted' : 'journaled';
  return isStored && isComplete ? 'missing' : 'unknown';
}

/** Returns undefined while ClickHouse does not answer and the message may still be in the journal. */
async function readPoints(
  shards: ShardReads,
  named: readonly ReceiptPoint[],
  waits: boolean,
): Promise<Written | undefined> {
  try {
    const points = await readWrittenPoints(shards, named);
    return new Map(points.map((point) => [nameOf(point, point.origin), point]));
  } catch (error) {
    if (waits && error instanceof Fault && error.reason === 'clickhouse_away') return undefined;
    throw error;
  }
}

/** Returns undefined when ClickHouse has only an older write. */
function stateOfWritten(receipt: Receipt, point: ReceiptPoint, found: WrittenPoint): NamedState | undefined {
  const version = versionOf(receipt.order, point.ts);
  if (found.version < version) return undefined;
  // The marker of a delete has the version after that of the write.
  if (found.isErased) return inState(point, 'deleted');
  if (found.version === version && found.digest === point.digest) return inState(point, 'stored');
  // A write of the same version is a later record of the same commit for this point.
  const order = orderOfVersion(found.version, BigInt(point.ts));
  return { point, state: 'replaced', replacedBy: { order, receivedTime: orderMs(order) }, reason: undefined };
}

/** A point at server time is named by its frame as well, so no later write replaces it. */
function nameOf({ device, key, ts, seq }: { device: number; key: string; ts: number; seq: number }, origin: bigint) {
  return JSON.stringify([device, key, ts, seq, seq === 0 ? '0' : origin.toString()]);
}
