/**
 * What has become of the message of a receipt (docs/rest.md#receipts), derived at the time of the question: from how
 * far the journal is stored (PostgreSQL, all hosts), and from the points in ClickHouse. The journal is read first:
 * whatever it calls stored, the later read of ClickHouse finds.
 */
import type { Clock } from '../base/clock.ts';
import { Fault } from '../base/errors.ts';
import type { ClickHouse } from '../clickhouse/client.ts';
import { expiredBefore } from '../device/sql/telemetry-days-store.ts';
import type { Postgres } from '../postgres/client.ts';
import { readWrittenPoints, type WrittenPoint } from '../telemetry/points-query.ts';
import { readStoredOrder } from './journal-store.ts';
import { orderMs, writerOf } from './order-number.ts';
import type { Receipt, ReceiptPoint } from './receipt.ts';

/** In this order: the state of a message is the last one that any of its named points has. */
export const pointStates = ['stored', 'replaced', 'deleted', 'expired', 'journaled', 'accepted', 'missing'] as const;
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
  clickhouse: ClickHouse;
  clock: Clock;
  /** `TELEMETRY_TTL_DAYS`; 0 = no limit. */
  ttlDays: number;
}

/**
 * `deviceOf` returns undefined for devices that were deleted. Throws 503 when the answer needs a store that is
 * unavailable.
 */
export async function readReceiptStates(
  { postgres, clickhouse, clock, ttlDays }: ReceiptStatesDeps,
  receipt: Receipt,
  deviceOf: (device: number) => { telemetryDays: number | null } | undefined,
): Promise<ReceiptStates> {
  const { order, lastOrder, named, ack } = receipt;
  const { isStored, storedBefore } = await readStoredOrder(postgres, writerOf(order), lastOrder);
  const waits = isStored === false;
  const written = await readPoints(clickhouse, named, waits);
  const now = clock.now();
  const states = named.map((point): NamedState => {
    const absent = (state: PointState) => ({ point, state, replacedBy: undefined });
    // The points of a deleted device leave ClickHouse later, and no read shows them until then.
    const device = deviceOf(point.device);
    if (device === undefined) return absent('deleted');
    const limit = expiredBefore(now, ttlDays, device.telemetryDays);
    if (limit !== undefined && point.ts < limit) return absent('expired');
    const found = written?.get(nameOf(point, versionOf(order, point.ts)));
    const own = found && stateOfWritten(receipt, point, found);
    if (own) return own;
    if (waits) return absent(ack === 'memory' ? 'accepted' : 'journaled');
    return absent('missing');
  });
  const isAllFound = receipt.points === states.length && states.every(({ state }) => state === 'stored');
  return {
    state: pointStates[Math.max(0, ...states.map(({ state }) => pointStates.indexOf(state)))]!,
    journal: isStored === undefined ? 'unknown' : isStored ? 'stored' : 'waiting',
    storedBefore: storedBefore ?? (isAllFound ? clock.now() : undefined),
    named: states,
  };
}

/** Undefined while ClickHouse does not answer and the message may wait for it: then the journal has the message. */
async function readPoints(
  clickhouse: ClickHouse,
  named: readonly ReceiptPoint[],
  waits: boolean,
): Promise<Map<string, WrittenPoint> | undefined> {
  try {
    const points = await readWrittenPoints(clickhouse, named);
    return new Map(points.map((point) => [nameOf(point, point.origin), point]));
  } catch (error) {
    if (waits && error instanceof Fault && error.reason === 'clickhouse_away') return undefined;
    throw error;
  }
}

/** Undefined: ClickHouse has an older write only. */
function stateOfWritten(receipt: Receipt, point: ReceiptPoint, found: WrittenPoint): NamedState | undefined {
  const version = versionOf(receipt.order, point.ts);
  if (found.version < version) return undefined;
  // The marker of a delete has the version after that of the write.
  if (found.isErased) return { point, state: 'deleted', replacedBy: undefined };
  if (found.version === version && found.digest === point.digest)
    return { point, state: 'stored', replacedBy: undefined };
  // A write of the same version is a later record of the same commit for this point.
  const order = found.version + (BigInt(point.ts) << 20n) - (1n << 63n);
  return { point, state: 'replaced', replacedBy: { order, receivedTime: orderMs(order) } };
}

/** As in `telemetry/block.ts`. */
function versionOf(order: bigint, ts: number): bigint {
  return order - (BigInt(ts) << 20n) + (1n << 63n);
}

/** A point at server time is named by its frame as well, so no later write replaces it. */
function nameOf({ device, key, ts, seq }: { device: number; key: string; ts: number; seq: number }, origin: bigint) {
  return JSON.stringify([device, key, ts, seq, seq === 0 ? '0' : origin.toString()]);
}
