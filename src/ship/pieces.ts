/**
 * Divides a unit of frames into pieces that are inserted one by one. Pieces are cut by days, because a partition costs
 * an insert more than a thousand rows do. A piece that is refused or takes too long is halved, by days or by rows.
 */
import type { Notes, TimeRange } from '../journal/ship-notes.ts';
import { addDays, SampledRecords } from '../telemetry/block-days.ts';
import { rowsOfBlock, splitBlock, withoutReplaced } from '../telemetry/read-block.ts';

export interface Piece {
  readonly payloads: readonly Uint8Array[];
  /** Rows of the payloads. Only those with `from` ≤ ts < `to` are inserted. */
  readonly rows: number;
  /** First milliseconds of the days of its rows, ascending; empty when the days are unknown. */
  readonly days: readonly number[];
  readonly from: number;
  readonly to: number;
  /** Shared by the pieces of one cut by rows. */
  span: Span;
  /** False only when every row is known to have its own `ts`. */
  readonly serverTimes: boolean;
  /** False only when no row is known to have a time to live. */
  readonly expires: boolean;
  /** True when most rows are the only ones of their series, by a sample. */
  readonly areSingle: boolean;
  /** The greatest `ts` of a row; infinite when the times are unknown. */
  readonly newest: number;
  /** The finished inserts. */
  telemetry: boolean;
  latest: boolean;
  /** Failures of this piece, by what they suggest about its rows. */
  crashes: number;
  unknown: number;
  slow: number;
}

/** A range of times that is stored when all its pieces are. */
interface Span extends TimeRange {
  /** Pieces that are not stored. */
  pieces: number;
  /** True when a row was refused: then the range does not count as stored. */
  refused: boolean;
}

/** Returns the ranges of a payload that are stored and need not be sent again. */
export type StoredOf = (payload: Uint8Array) => readonly TimeRange[];

export const daysMax = 100;
/** Bytes of a unit. The body is a copy of its frames, so an insert uses twice this. 400 000 numeric rows are 14 MB. */
export const unitBytesMax = 16 * 1024 * 1024;
/** The rows that cost an insert about as much as one partition. */
const rowsOfDay = 1_000;
const everything = { from: Number.MIN_SAFE_INTEGER, to: Number.MAX_SAFE_INTEGER };

const nothing: readonly TimeRange[] = [];
export const nothingStored: StoredOf = () => nothing;

/** Returns which rows of late frames an earlier process has stored. `orders`: the order of each payload. */
export function storedOf(notes: Notes, { payloads, orders }: Pick<PartOfUnit, 'payloads' | 'orders'>): StoredOf {
  if (notes.isEmpty) return nothingStored;
  const ranges = new Map(payloads.map((payload, i) => [payload, notes.rangesOf(orders[i]!)]));
  return (payload) => ranges.get(payload) ?? nothing;
}

/**
 * Returns pieces of at most `most` days, without the ranges that are stored. Those near today come first, because most
 * waiting rows are of these days.
 */
export function piecesOf(
  payloads: readonly Uint8Array[],
  today: number,
  stored: StoredOf = nothingStored,
  most: number = daysMax,
): Piece[] {
  const ends = payloads.flatMap((payload) => stored(payload).flatMap(({ from, to }) => [from, to]));
  const wholes = ends.length === 0 ? [pieceOf(payloads, everything.from, everything.to)] : [];
  const starts = [everything.from, ...[...new Set(ends)].sort((a, b) => a - b), everything.to];
  // No range ends inside such a piece, so each payload is stored there as a whole or not at all.
  for (let i = 0; ends.length > 0 && i + 1 < starts.length; i += 1) {
    const [from, to] = [starts[i]!, starts[i + 1]!];
    const isStored = (payload: Uint8Array) => stored(payload).some((range) => range.from <= from && to <= range.to);
    const piece = pieceOf(
      payloads.filter((payload) => !isStored(payload)),
      from,
      to,
    );
    if (from < to && piece.payloads.length > 0) wholes.push(piece);
  }
  const pieces = wholes.flatMap((whole) => (whole.days.length <= most ? [whole] : cutByDays(whole, most)));
  const distance = ({ from, to }: Piece) => Math.max(0, from - today, today - to);
  return pieces.sort((a, b) => distance(a) - distance(b));
}

/**
 * Returns the frames of a unit that are stored beside the lane, or undefined when the unit has at most `daysMax` days.
 * The lane keeps the frames with the fewest days, of at most `daysMax` days together.
 */
export function wideOf(payloads: readonly Uint8Array[], stored: StoredOf): Set<Uint8Array> | undefined {
  const frames = payloads.map((payload) => {
    const days = new Set<number>();
    let { from } = everything;
    for (const range of stored(payload)) {
      addDays(payload, days, from, range.from);
      from = range.to;
    }
    addDays(payload, days, from, everything.to);
    return { payload, days };
  });
  frames.sort((a, b) => a.days.size - b.days.size);
  const together = new Set<number>();
  const wide = new Set<Uint8Array>();
  for (const { payload, days } of frames) {
    const more = [...days].filter((day) => !together.has(day));
    if (together.size + more.length > daysMax) wide.add(payload);
    else for (const day of more) together.add(day);
  }
  return wide.size > 0 ? wide : undefined;
}

/** Some frames of one unit. */
export interface PartOfUnit {
  payloads: readonly Uint8Array[];
  orders: readonly bigint[];
  rows: number;
  /** An order ≤ that of every frame. */
  orderMin: bigint;
}

export function framesOf(unit: PartOfUnit, isOfPart: (payload: Uint8Array) => boolean): PartOfUnit {
  const payloads: Uint8Array[] = [];
  const orders: bigint[] = [];
  let rows = 0;
  for (const [i, payload] of unit.payloads.entries()) {
    if (!isOfPart(payload)) continue;
    payloads.push(payload);
    orders.push(unit.orders[i]!);
    rows += rowsIn(payload);
  }
  return { payloads, orders, rows, orderMin: orders.length > 0 ? leastOf(orders) : unit.orderMin };
}

/** Frames of a stream are of several writers, so their orders do not ascend. */
export function leastOf(orders: readonly bigint[]): bigint {
  let least = orders[0]!;
  for (const order of orders) if (order < least) least = order;
  return least;
}

/** True for a single row, or for bytes that cannot be decoded into rows. */
export function isIndivisible(piece: Piece): boolean {
  return piece.payloads.length === 1 && piece.days.length <= 1 && rowsIn(piece.payloads[0]!) < 2;
}

/** Returns pieces with the same points, at most two of them; undefined when the piece is whole. */
export function halvesOf(piece: Piece): Piece[] | undefined {
  const halves = cutInHalves(piece);
  if (!halves) return undefined;
  const { span } = piece;
  // Halves by rows, and parts of such halves, are stored together or not at all.
  if (span.pieces > 1 || halves.some(({ from, to }) => from === piece.from && to === piece.to)) {
    span.pieces += halves.length - 1;
    for (const half of halves) half.span = span;
  }
  return halves;
}

function cutInHalves(piece: Piece): Piece[] | undefined {
  if (piece.days.length > 1 && piece.days.length * rowsOfDay >= piece.rows) {
    return cutByDays(piece, Math.ceil(piece.days.length / 2));
  }
  const { payloads } = piece;
  const half = payloads.length >> 1;
  if (half > 0) return [payloads.slice(0, half), payloads.slice(half)].flatMap((part) => partOf(piece, part));
  if (rowsIn(payloads[0]!) < 2) {
    return piece.days.length > 1 ? cutByDays(piece, Math.ceil(piece.days.length / 2)) : undefined;
  }
  // The halves are inserted in any order.
  const block = withoutReplaced(payloads[0]!);
  const rows = rowsIn(block);
  const parts = rows < 2 ? [block] : [splitBlock(block, 0, rows >> 1), splitBlock(block, rows >> 1, rows)];
  return parts.flatMap((part) => partOf(piece, [part]));
}

function cutByDays({ payloads, days, from, to, telemetry, latest }: Piece, each: number): Piece[] {
  const pieces: Piece[] = [];
  for (let at = 0; at < days.length; at += each) {
    const start = at === 0 ? from : days[at]!;
    const end = days[at + each] ?? to;
    pieces.push({ ...pieceOf(payloads, start, end), telemetry, latest });
  }
  return pieces;
}

function partOf(piece: Piece, payloads: readonly Uint8Array[]): Piece[] {
  const { from, to, telemetry, latest } = piece;
  const part = { ...pieceOf(payloads, from, to), telemetry, latest };
  return part.payloads.length > 0 ? [part] : [];
}

/** Makes a piece without the payloads that have no row in the range. */
function pieceOf(payloads: readonly Uint8Array[], from: number, to: number): Piece {
  const days = new Set<number>();
  const ranged = from !== everything.from || to !== everything.to;
  let rows = 0;
  let serverTimes = false;
  let expires = false;
  let newest = Number.NEGATIVE_INFINITY;
  const sampled = new SampledRecords();
  const kept = payloads.filter((payload) => {
    const times = addDays(payload, days, from, to);
    if (times && ranged && (times.newest < from || times.oldest >= to)) return false;
    sampled.add(payload);
    rows += times?.rows ?? 1;
    if (times?.hasSeq !== false) serverTimes = true;
    if (times?.hasExpires !== false) expires = true;
    newest = Math.max(newest, times?.newest ?? Number.POSITIVE_INFINITY);
    return true;
  });
  const counts = { telemetry: false, latest: false, crashes: 0, unknown: 0, slow: 0 };
  const span = { from, to, pieces: 1, refused: false };
  return {
    payloads: kept,
    rows,
    days: [...days].sort((a, b) => a - b),
    from,
    to,
    span,
    serverTimes,
    expires,
    areSingle: sampled.areSingle,
    newest,
    ...counts,
  };
}

/** True when only the rows of a range are inserted. */
export function isRanged({ from, to }: Piece): boolean {
  return from !== everything.from || to !== everything.to;
}

/** Returns the rows of a block; 1 for bytes that are not a block. */
export function rowsIn(payload: Uint8Array): number {
  try {
    const rows = rowsOfBlock(payload);
    // Bytes that are not a block may begin like one: they cannot be split.
    if (rows > 1) splitBlock(payload, 0, 1);
    return rows;
  } catch {
    return 1;
  }
}
