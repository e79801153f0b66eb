/** A journal under a random but repeatable load, with a ledger of its promises; and the check of these promises. */

import type { Journal, JournalFrame, Lane, ShipUnit } from '../../src/journal/journal.ts';
import { type OpenJournalDeps, openJournal } from '../../src/journal/open-journal.ts';
import type { Random } from '../harness/random.ts';
import { silentLog } from '../harness/silent-log.ts';
import type { SimDisk } from './sim-disk.ts';

export const dir = '/journal/worker-1';
const segmentBytes = 20 * 1024;

export interface Ledger {
  /** Payload size by order number, for every frame that was ever appended. */
  sent: Map<bigint, number>;
  acked: Set<bigint>;
  confirmed: Set<bigint>;
  /** Orders of each append, acknowledged or not. */
  commits: bigint[][];
  /** Orders of appends that were rejected, so that their senders were refused. */
  refused: Set<bigint>;
  order: bigint;
}

export function newLedger(): Ledger {
  return { sent: new Map(), acked: new Set(), confirmed: new Set(), commits: [], refused: new Set(), order: 1000n };
}

export function open(disk: SimDisk, options: Partial<OpenJournalDeps> = {}): Promise<Journal> {
  return openJournal({ dir, disk, log: silentLog, segmentBytes, locked: true, ...options });
}

/** A payload: its own order number, then bytes that are computed from this number. */
function payloadOf(order: bigint, bytes: number): Buffer {
  const payload = Buffer.alloc(bytes, Number(order % 251n) + 1);
  payload.writeBigUInt64LE(order);
  return payload;
}

export function frameOf(ledger: Ledger, lane: Lane, bytes: number): JournalFrame {
  const order = (ledger.order += 1n);
  ledger.sent.set(order, bytes);
  const payload = payloadOf(order, bytes);
  const cut = 8 + Math.floor((bytes - 8) / 3);
  return { lane, order, rows: 1 + (bytes % 7), parts: [payload.subarray(0, cut), payload.subarray(cut)] };
}

export async function append(journal: Journal, ledger: Ledger, frames: JournalFrame[]): Promise<void> {
  ledger.commits.push(frames.map(({ order }) => order));
  try {
    await journal.append(frames);
  } catch (error) {
    for (const { order } of frames) ledger.refused.add(order);
    throw error;
  }
  for (const { order } of frames) ledger.acked.add(order);
}

export async function appendRandom(journal: Journal, ledger: Ledger, random: Random): Promise<void> {
  const frames: JournalFrame[] = [];
  const count = 1 + random.below(3);
  for (let i = 0; i < count; i += 1) {
    frames.push(frameOf(ledger, random.next() < 0.7 ? 0 : 1, 8 + Math.floor(random.next() * random.next() * 3000)));
  }
  await append(journal, ledger, frames);
}

/** Returns the order numbers of one unit, after a check of its payloads. */
export async function ship(journal: Journal, ledger: Ledger, lane: Lane, rowsMax = 20): Promise<bigint[] | undefined> {
  const unit = await journal.next(lane, { rowsMax, bytesMax: 6000 });
  if (!unit) return undefined;
  const orders = unit.payloads.map((payload) => checkedOrder(payload, ledger));
  for (const order of orders) ledger.confirmed.add(order);
  await journal.confirm(unit);
  return orders;
}

/** Takes a unit, and keeps it open or confirms one of the open ones: confirmed frames may be returned again. */
export async function shipApart(journal: Journal, ledger: Ledger, random: Random, open: ShipUnit[]): Promise<void> {
  const unit = await journal.next(random.next() < 0.5 ? 0 : 1, { rowsMax: 20, bytesMax: 6000 });
  if (unit) {
    for (const payload of unit.payloads) checkedOrder(payload, ledger);
    open.push(unit);
  }
  if (open.length === 0 || random.next() < 0.4) return;
  const [chosen] = open.splice(random.below(open.length), 1);
  for (const payload of chosen!.payloads) ledger.confirmed.add(payload.readBigUInt64LE());
  await journal.confirm(chosen!);
}

export async function shipAll(journal: Journal, ledger: Ledger): Promise<Record<Lane, bigint[]>> {
  return { 0: await shipAllOf(journal, ledger, 0), 1: await shipAllOf(journal, ledger, 1) };
}

export async function shipAllOf(journal: Journal, ledger: Ledger, lane: Lane): Promise<bigint[]> {
  const all: bigint[] = [];
  for (let orders = await ship(journal, ledger, lane); orders; orders = await ship(journal, ledger, lane)) {
    all.push(...orders);
  }
  return all;
}

function checkedOrder(payload: Buffer, ledger: Ledger): bigint {
  const order = payload.readBigUInt64LE();
  const bytes = ledger.sent.get(order);
  if (bytes === undefined) throw new Error(`a frame with order ${order} was never sent`);
  if (!payload.equals(payloadOf(order, bytes))) throw new Error(`frame ${order} is damaged`);
  return order;
}

/**
 * Checks a journal after a restart: no acknowledged frame is missing, no refused one exists, an append exists as a
 * whole or not at all, the order is kept, and no frame is repeated.
 */
export async function checkRecovered(
  disk: SimDisk,
  ledger: Ledger,
  options: Partial<OpenJournalDeps> = {},
): Promise<Journal> {
  const owed = [...ledger.acked].filter((order) => !ledger.confirmed.has(order));
  const journal = await open(disk, options);
  const orderMax = journal.orderMax;
  const all = await shipAll(journal, ledger);
  for (const lane of [0, 1] as Lane[]) {
    const orders = all[lane];
    orders.forEach((order, i) => {
      if (i > 0 && order <= orders[i - 1]!) throw new Error(`lane ${lane}: ${order} comes after ${orders[i - 1]}`);
      if (order > orderMax) throw new Error(`order ${order} is above orderMax ${orderMax}`);
    });
  }
  const seen = new Set([...all[0], ...all[1]]);
  for (const order of owed) if (!seen.has(order)) throw new Error(`acknowledged frame ${order} is lost`);
  for (const commit of ledger.commits) {
    const there = commit.filter((order) => seen.has(order) || ledger.confirmed.has(order)).length;
    if (there > 0 && there < commit.length) throw new Error(`of append ${commit} only a part is given out`);
  }
  for (const order of ledger.refused) if (seen.has(order)) throw new Error(`refused frame ${order} is given out`);
  for (const order of ledger.acked) if (order > orderMax) throw new Error(`acknowledged ${order} is above orderMax`);
  for (const lane of [0, 1] as Lane[]) {
    if (journal.rowsWaiting(lane) !== 0 || journal.bytesWaiting(lane) !== 0)
      throw new Error('counters do not end at 0');
  }
  return journal;
}
