/**
 * The answers to a sender when the journal's disk fails, fills up or is slow: the group commit over a simulated disk.
 */
import { afterEach, expect, test, vi } from 'vitest';
import { systemClock as clock } from '../../src/base/clock.ts';
import type { Fault } from '../../src/base/errors.ts';
import { Metrics } from '../../src/base/metrics/metrics.ts';
import { type AckLevel, Ingest, type IngestDeps, streamLinger, type Waiter } from '../../src/ingest/accept.ts';
import { OrderClock } from '../../src/ingest/order-number.ts';
import type { Journal } from '../../src/journal/journal.ts';
import type { FrameStamp } from '../../src/telemetry/block.ts';
import { decodeTelemetry } from '../../src/telemetry/decode.ts';
import { Chunk, chunksOf } from '../../src/telemetry/decoded-chunk.ts';
import { keyOf } from '../../src/telemetry/keys.ts';
import { type BlockRow, readBlock } from '../../src/telemetry/read-block.ts';
import { Rows } from '../../src/telemetry/rows.ts';
import { silentLog } from '../harness/silent-log.ts';
import { open } from './journal-model.ts';
import { SimDisk } from './sim-disk.ts';

const segmentBytes = 8 * 1024 * 1024;
const decoding = {
  castNumericStrings: true,
  lenientJson: true,
  pointsPerMessageMax: 200_000,
  pastMsMax: 8e12,
  fastPastMsMax: 8e12,
  convertsUnits: false,
  futureMsMax: 8e12,
};

class Device {
  readonly id = '784f394c-42b6-435a-983c-b7beff2784f9';
  readonly number: number;
  readonly tenantId: string;
  readonly customerId = null;
  #last = 0;

  constructor(number = 7, tenantId = 'mill') {
    this.number = number;
    this.tenantId = tenantId;
  }

  nextTs(now: number): number {
    this.#last = Math.max(now, this.#last + 1);
    return this.#last;
  }
}

class Sender implements Waiter {
  readonly outcome: Promise<'acknowledged' | Fault>;
  #settle!: (outcome: 'acknowledged' | Fault) => void;

  constructor() {
    this.outcome = new Promise((resolve) => {
      this.#settle = resolve;
    });
  }

  acknowledge(): void {
    this.#settle('acknowledged');
  }

  refuse(fault: Fault): void {
    this.#settle(fault);
  }
}

const device = new Device();
const decode = (body: Uint8Array, source: Device, now: number, rows: Rows) =>
  decodeTelemetry(body, source, now, rows, decoding);

let ingest: Ingest;
let journal: Journal;
const failed = vi.fn<(reason: string) => void>();

async function start(disk: SimDisk, ack: AckLevel = 'journal', options: Partial<IngestDeps> = {}): Promise<void> {
  journal = await open(disk, { segmentBytes });
  ingest = new Ingest({
    journal,
    orders: new OrderClock(clock, 1, journal.orderMax),
    clock,
    log: silentLog,
    metrics: new Metrics(),
    ack,
    storeAckMsMax: 60_000,
    backlogBytesMax: 1e9,
    freeDiskBytesMin: 0,
    lingerMsMax: 0,
    unsyncedBytesMax: 32e6,
    unsyncedMsMax: 2000,
    onCommitted: () => {},
    onFailed: failed,
    ...options,
  });
}

function send(json: unknown, from = device): Sender {
  const sender = new Sender();
  ingest.accept(decode, Buffer.from(JSON.stringify(json)), from, sender, undefined, from);
  return sender;
}

async function journaled(lane: 0 | 1 = 0): Promise<{ key: string; num: number; int: bigint }[]> {
  const unit = await journal.next(lane, { rowsMax: 1e6, bytesMax: 1e9 });
  return (unit?.payloads ?? []).flatMap((payload) => readBlock(payload));
}

/** Makes each write of a segment wait until the returned function is called. */
function hold(disk: SimDisk): () => void {
  let release = () => {};
  const released = new Promise<void>((resolve) => {
    release = resolve;
  });
  disk.sleep = () => released;
  disk.fault = (operation, path) => (operation === 'write' && path.endsWith('.seg') ? 1 : undefined);
  return release;
}

afterEach(() => {
  failed.mockClear();
});

test('messages of one turn share a commit and are acknowledged together, when they are on the disk', async () => {
  await start(new SimDisk());
  const senders = Array.from({ length: 50 }, (_, i) => send({ a: i + 0.5 }));
  expect(await Promise.all(senders.map((sender) => sender.outcome))).toEqual(Array(50).fill('acknowledged'));
  const unit = await journal.next(0, { rowsMax: 1e6, bytesMax: 1e9 });
  expect(unit).toMatchObject({ frames: 1, rows: 50 });
  const stored = unit!.payloads.flatMap((payload) => readBlock(payload));
  expect(stored.map((row) => row.num)).toEqual(Array.from({ length: 50 }, (_, i) => i + 0.5));
});

test('after a commit of many messages to a stream the next one waits for more; that of a single sender does not', async () => {
  vi.useFakeTimers({ toFake: ['setTimeout', 'clearTimeout'] });
  try {
    await start(new SimDisk(), 'journal', { linger: streamLinger });
    const alone = [send({ a: 1 }), send({ a: 2 })];
    await Promise.all(alone.map(({ outcome }) => outcome));
    expect(await send({ a: 3 }).outcome).toBe('acknowledged');
    await Promise.all(Array.from({ length: 100 }, (_, i) => send({ b: i }).outcome));
    while ((await journal.next(0, { rowsMax: 1e6, bytesMax: 1e9 })) !== undefined);
    const first = send({ c: 1 });
    for (let turn = 0; turn < 10; turn += 1) await new Promise((resolve) => setImmediate(resolve));
    expect(journal.rowsUntaken(0)).toBe(0);
    const second = send({ c: 2 });
    vi.advanceTimersByTime(streamLinger.msMax);
    await Promise.all([first.outcome, second.outcome]);
    expect(await journal.next(0, { rowsMax: 1e6, bytesMax: 1e9 })).toMatchObject({ frames: 1, rows: 2 });
  } finally {
    vi.useRealTimers();
  }
});

test('a refused message leaves no row beside those of its neighbours', async () => {
  await start(new SimDisk());
  const first = send({ good: 1 });
  expect(() => ingest.accept(decode, Buffer.from('{"bad":1,"worse":'), device, new Sender())).toThrow(/not valid JSON/);
  const last = send({ fine: 2 });
  expect(await Promise.all([first.outcome, last.outcome])).toEqual(['acknowledged', 'acknowledged']);
  expect((await journaled()).map((row) => row.key)).toEqual(['good', 'fine']);
});

test('a sync that fails once costs no sender anything: the commit goes to a new segment', async () => {
  const disk = new SimDisk();
  await start(disk);
  let failures = 1;
  disk.fault = (operation) => (operation === 'write' && failures-- > 0 ? 'EIO' : undefined);
  expect(await send({ a: 1 }).outcome).toBe('acknowledged');
  expect(failed).not.toHaveBeenCalled();
  expect(await journaled()).toHaveLength(1);
});

test('a commit whose sync fails twice is refused with 503, and the process must end', async () => {
  const disk = new SimDisk();
  await start(disk);
  disk.fault = (operation) => (operation === 'write' ? 'EIO' : undefined);
  expect(await send({ a: 1 }).outcome).toMatchObject({ status: 503, reason: 'journal_failed' });
  expect(failed).toHaveBeenCalledOnce();
});

test('a full disk is 503 with Retry-After, and telemetry is welcome again when there is space', async () => {
  const disk = new SimDisk();
  await start(disk);
  expect(await send({ a: 1 }).outcome).toBe('acknowledged');
  disk.fault = (operation) => (operation === 'write' || operation === 'open' ? 'ENOSPC' : undefined);
  expect(await send({ a: 2 }).outcome).toMatchObject({ status: 503, reason: 'disk_full', retryAfterSeconds: 5 });
  expect(() => send({ a: 3 })).toThrow(/disk of the journal is full/);
  disk.fault = () => undefined;
  await vi.waitFor(() => expect(ingest.refusal()).toBeUndefined(), 20_000);
  expect(await send({ a: 4 }).outcome).toBe('acknowledged');
  expect((await journaled()).map((row) => row.int)).toEqual([1n, 4n]);
  expect(failed).not.toHaveBeenCalled();
});

test('a disk with less space than it must keep free is refused before it is full', async () => {
  await start(new SimDisk(), 'journal', { freeDiskBytesMin: Number.MAX_SAFE_INTEGER });
  expect(() => send({ a: 1 })).toThrow(/free space/);
});

test('while ClickHouse takes nothing, one device and one tenant leave a part of the journal to others', async () => {
  vi.useFakeTimers({ toFake: ['setInterval', 'clearInterval'] });
  try {
    const backlogBytesMax = 4e6;
    await start(new SimDisk(), 'journal', { backlogBytesMax });
    const text = 'x'.repeat(20_000);
    /** Sends until the device is refused; returns the reason and the part of the journal that waits then. */
    const fill = async (from: Device): Promise<[string, number]> => {
      for (;;) {
        try {
          expect(await send({ text }, from).outcome).toBe('acknowledged');
        } catch (error) {
          return [(error as Fault).reason, journal.backlogDiskBytes / backlogBytesMax];
        }
        // Lets the ingest read the state of the journal.
        vi.advanceTimersByTime(100);
      }
    };
    const [ofDevice, byDevice] = await fill(new Device(1, 'flood'));
    expect([ofDevice, Math.round(byDevice * 20) / 20]).toEqual(['backlog_share', 0.75]);
    let byTenant = 0;
    for (let number = 2; number < 40; number += 1) {
      const [reason, part] = await fill(new Device(number, 'flood'));
      expect(reason).toBe('backlog_share');
      byTenant = part;
    }
    expect(byTenant).toBeGreaterThan(0.9);
    expect(byTenant).toBeLessThan(0.97);
    expect(await send({ a: 1 }, new Device(99, 'mill')).outcome).toBe('acknowledged');
    expect(() => send({ text }, new Device(1, 'flood'))).toThrow(/share of the journal/);
  } finally {
    vi.useRealTimers();
  }
});

test('a slow sync is refused after its time instead of piling up', async () => {
  const disk = new SimDisk();
  await start(disk, 'journal', { unsyncedMsMax: 200 });
  const release = hold(disk);
  const waiting = send({ a: 1 });
  await vi.waitFor(() => expect(ingest.refusal()).toMatchObject({ reason: 'journal_slow' }), 20_000);
  release();
  expect(await waiting.outcome).toBe('acknowledged');
});

test('more bytes than may wait for a sync are refused', async () => {
  const disk = new SimDisk();
  await start(disk, 'journal', { unsyncedBytesMax: 5000 });
  disk.fault = (operation, path) => (operation === 'write' && path.endsWith('.seg') ? 100 : undefined);
  const text = 'x'.repeat(1000);
  const senders: Sender[] = [];
  expect(() => {
    for (let i = 0; i < 100; i += 1) senders.push(send({ text }));
  }).toThrow(/too slow/);
  expect(senders.length).toBeLessThan(10);
  expect(new Set(await Promise.all(senders.map((sender) => sender.outcome)))).toEqual(new Set(['acknowledged']));
});

/** Sends a message as the decoding thread does. */
function sendDecoded(json: unknown, from: Device): Sender {
  const rows = new Rows();
  decode(Buffer.from(JSON.stringify(json)), from, clock.now(), rows);
  const sender = new Sender();
  const chunks = chunksOf(rows).map((chunk) => new Chunk(chunk));
  taken = ingest.acceptDecoded(chunks, sender, from);
  return sender;
}
/** Resolves when the last message of `sendDecoded` has its order. */
let taken: Promise<void>;

test('decoded messages of tenants take turns for the disk', async () => {
  await start(new SimDisk());
  const order: string[] = [];
  const text = 'x'.repeat(300_000);
  const flood = Array.from({ length: 8 }, (_, n) => new Device(n, 'flood'));
  const all = [...flood, new Device(99, 'mill')].map(async (device) => {
    await sendDecoded({ text }, device).outcome;
    order.push(device.tenantId);
  });
  await Promise.all(all);
  expect(order.indexOf('mill')).toBeLessThan(3);
});

test('decoded messages refuse no other message, and the thread waits for those that wait', async () => {
  const disk = new SimDisk();
  await start(disk, 'journal', { unsyncedBytesMax: 20_000 });
  disk.fault = (operation, path) => (operation === 'write' && path.endsWith('.seg') ? 50 : undefined);
  expect(ingest.roomForLarge('flood')).toBeUndefined();
  const text = 'x'.repeat(9000);
  const flood = new Device(1, 'flood');
  const [first, second] = [sendDecoded({ text }, flood), sendDecoded({ text }, flood)];
  const settled: string[] = [];
  const room = ingest.roomForLarge('flood')!.then(() => settled.push('room'));
  for (const [name, { outcome }] of Object.entries({ first, second })) void outcome.then(() => settled.push(name));
  // A message that comes later does not delay a thread that waits already.
  const third = sendDecoded({ text }, flood);
  const other = new Device(99, 'mill');
  const others = [send({ a: 1 }, other), sendDecoded({ a: 1 }, other)];
  await room;
  expect(settled).toEqual(['first', 'room']);
  for (const { outcome } of [second, third, ...others]) expect(await outcome).toBe('acknowledged');
});

/** Each write of a segment takes this long. */
function slow(disk: SimDisk, ms: number): void {
  disk.fault = (operation, path) => (operation === 'write' && path.endsWith('.seg') ? ms : undefined);
}

test('decoded messages of one tenant leave room for a body of another', async () => {
  const disk = new SimDisk();
  await start(disk);
  slow(disk, 50);
  const flood = new Device(1, 'flood');
  const senders = [sendDecoded({ a: 1 }, flood), sendDecoded({ a: 2 }, flood), sendDecoded({ a: 3 }, flood)];
  expect(ingest.roomForLarge('flood')).toBeDefined();
  expect(ingest.roomForLarge('mill')).toBeUndefined();
  for (const { outcome } of senders) expect(await outcome).toBe('acknowledged');
});

test.each(['memory', 'journal'] as const)('decoded messages above the cap are refused, with %s', async (ack) => {
  const disk = new SimDisk();
  await start(disk, ack, { unsyncedBytesMax: 20_000 });
  slow(disk, 300);
  const text = 'x'.repeat(1000);
  const senders: Sender[] = [];
  expect(() => {
    for (let i = 0; i < 1000; i += 1) senders.push(sendDecoded({ text }, new Device(i, 'flood')));
  }).toThrow(/too slow/);
  expect(senders.length).toBeLessThan(30);
  senders.push(sendDecoded({ text }, new Device(1, 'mill')), send({ a: 1 }, new Device(2, 'flood')));
  for (const { outcome } of senders) expect(await outcome).toBe('acknowledged');
});

test('a body that waits for room learns of a stalled disk in time', async () => {
  const disk = new SimDisk();
  await start(disk, 'journal', { unsyncedMsMax: 1000 });
  slow(disk, 3000);
  const senders = [send({ a: 1 })];
  await vi.waitFor(() => expect(journal.unsyncedBytes).toBeGreaterThan(0), 20_000);
  senders.push(sendDecoded({ a: 2 }, device));
  const settled: string[] = [];
  void senders[0]!.outcome.then(() => settled.push('written'));
  await ingest.roomForLarge(device.tenantId)!.then(() => settled.push('room'));
  expect(ingest.refusal()).toMatchObject({ reason: 'journal_slow' });
  expect(ingest.roomForLarge(device.tenantId)).toBeUndefined();
  for (const { outcome } of senders) expect(await outcome).toBe('acknowledged');
  expect(settled).toEqual(['room', 'written']);
});

test('what is sent after a decoded message was taken has the higher order', async () => {
  const disk = new SimDisk();
  await start(disk);
  slow(disk, 50);
  const senders = [sendDecoded({ other: 1 }, device)];
  await vi.waitFor(() => expect(journal.unsyncedBytes).toBeGreaterThan(0), 20_000);
  const ts = clock.now();
  senders.push(sendDecoded({ ts, values: { a: 1 } }, device));
  await taken;
  senders.push(send({ ts, values: { a: 2 } }));
  for (const { outcome } of senders) expect(await outcome).toBe('acknowledged');
  expect((await journaled()).map(({ key, int }) => `${key} ${int}`)).toEqual(['other 1', 'a 1', 'a 2']);
});

test('a decoded message has a higher order than what was accepted before it', async () => {
  const disk = new SimDisk();
  await start(disk);
  slow(disk, 50);
  const senders = [send({ other: 1 })];
  await vi.waitFor(() => expect(journal.unsyncedBytes).toBeGreaterThan(0), 20_000);
  const ts = clock.now();
  senders.push(send({ ts, values: { a: 1 } }), sendDecoded({ ts, values: { a: 2 } }, device));
  for (const { outcome } of senders) expect(await outcome).toBe('acknowledged');
  expect((await journaled()).map(({ key, int }) => `${key} ${int}`)).toEqual(['other 1', 'a 1', 'a 2']);
});

test('with memory, a decoded message is acknowledged when it has its order, before it is written', async () => {
  const disk = new SimDisk();
  await start(disk, 'memory');
  slow(disk, 100);
  const first = sendDecoded({ other: 1 }, device);
  expect(await first.outcome).toBe('acknowledged');
  expect(await journaled()).toEqual([]);
  const ts = clock.now();
  expect(await sendDecoded({ ts, values: { a: 1 } }, device).outcome).toBe('acknowledged');
  expect(await send({ ts, values: { a: 2 } }).outcome).toBe('acknowledged');
  await ingest.close();
  expect((await journaled()).map(({ key, int }) => `${key} ${int}`)).toEqual(['other 1', 'a 1', 'a 2']);
});

test('a loop that is late for seconds on end refuses, and takes messages now and then all the same', async () => {
  vi.useFakeTimers({ toFake: ['setInterval', 'clearInterval'] });
  try {
    let late = 0;
    const lagging = { now: () => clock.now(), micros: () => clock.micros(), monotonic: () => late };
    await start(new SimDisk(), 'journal', { clock: lagging });
    const reasons: (string | undefined)[] = [];
    for (let n = 0; n < 8; n += 1) {
      late += 700;
      vi.advanceTimersByTime(100);
      reasons.push(ingest.refusal()?.reason);
    }
    const refused = Array.from({ length: 3 }, () => 'loop_lag');
    // One late check alone refuses nothing.
    expect(reasons).toEqual([undefined, ...refused, undefined, ...refused]);
    late += 100;
    vi.advanceTimersByTime(100);
    expect(ingest.refusal()).toBeUndefined();
  } finally {
    vi.useRealTimers();
  }
});

test('a journal at its cap refuses until ClickHouse has taken some of it', async () => {
  await start(new SimDisk(), 'journal', { backlogBytesMax: 20_000 });
  expect(await send({ text: 'x'.repeat(5000) }).outcome).toBe('acknowledged');
  await expect(async () => {
    for (let i = 0; i < 200; i += 1) {
      // Each tenant has a share of its own.
      await send({ text: 'x'.repeat(5000) }, new Device(i, `tenant ${i}`)).outcome;
      await new Promise((resolve) => setTimeout(resolve, 20));
    }
  }).rejects.toThrow(/has not taken data for so long/);
  const unit = await journal.next(0, { rowsMax: 1e6, bytesMax: 1e9 });
  await journal.confirm(unit!);
  await vi.waitFor(() => expect(ingest.refusal()).toBeUndefined(), 20_000);
});

test('points older than yesterday take the late lane, also beside new ones', async () => {
  await start(new SimDisk());
  const now = Date.now();
  const old = now - 3 * 86_400_000;
  const message = [
    { ts: old, values: { a: 1 } },
    { ts: now, values: { b: 2 } },
  ];
  await Promise.all([send(message).outcome, send({ ts: now, values: { c: 3 } }).outcome]);
  expect((await journaled(0)).map((row) => row.key)).toEqual(['c']);
  expect((await journaled(1)).map((row) => row.key)).toEqual(['a', 'b']);
});

test('of two messages of one commit that have the same point the later one counts, whatever their lanes', async () => {
  await start(new SimDisk());
  const today = Date.now();
  const old = { ts: today - 5 * 86_400_000, values: { a: 0.5 } };
  const at = (ts: number, a: number) => ({ ts, values: { a } });
  const messages = [
    at(today, 1.5),
    [old, at(today, 2.5), at(today + 1, 3.5)],
    [at(today, 4.5), at(today + 2, 5.5)],
    at(today + 2, 7.5),
  ];
  const senders = messages.map((message) => send(message));
  const other = send(at(today + 1, 6.5), new Device(8));
  await Promise.all([...senders, other].map(({ outcome }) => outcome));
  const rows = [...(await journaled(0)), ...(await journaled(1))] as BlockRow[];
  const kept = new Map<string, BlockRow>();
  for (const row of rows) {
    const name = `${row.device} ${row.ts - today}`;
    if (row.order >= (kept.get(name)?.order ?? 0n)) kept.set(name, row);
  }
  expect([...kept].map(([name, { num }]) => [name, num]).sort()).toEqual([
    ['7 -432000000', 0.5],
    ['7 0', 4.5],
    ['7 1', 3.5],
    ['7 2', 7.5],
    ['8 1', 6.5],
  ]);
});

test('ingest.ack memory answers before the disk does', async () => {
  const disk = new SimDisk();
  await start(disk, 'memory');
  const release = hold(disk);
  expect(await send({ a: 1 }).outcome).toBe('acknowledged');
  release();
}, 20_000);

test('ingest.ack store waits for the shipment', async () => {
  await start(new SimDisk(), 'store');
  const sender = send({ a: 1 });
  await vi.waitFor(() => expect(journal.rowsWaiting(0)).toBe(1), { timeout: 30_000 });
  const early = Promise.race([sender.outcome, new Promise((resolve) => setTimeout(resolve, 50, 'still waiting'))]);
  expect(await early).toBe('still waiting');
  await shipLane(0);
  expect(await sender.outcome).toBe('acknowledged');
});

async function shipLane(lane: 0 | 1): Promise<void> {
  const unit = await journal.next(lane, { rowsMax: 1e6, bytesMax: 1e9 });
  ingest.notices.stored(lane, new Set(unit!.orders));
  await journal.confirm(unit!);
  ingest.notices.shipped();
}

test('ingest.ack store: a message that cannot be read back from the journal is not acknowledged, others are', async () => {
  const disk = new SimDisk();
  await start(disk, 'store');
  const senders: Sender[] = [];
  for (const a of [1.5, 2.5, 3.5]) {
    senders.push(send({ a }));
    await vi.waitFor(() => expect(journal.rowsWaiting(0)).toBe(senders.length), { timeout: 30_000 });
  }
  const segment = disk.content(disk.paths().find((path) => path.endsWith('.seg'))!);
  const number = Buffer.alloc(8);
  number.writeDoubleLE(2.5);
  segment[segment.indexOf(number)]! ^= 1;
  await shipLane(0);
  const [first, damaged, last] = await Promise.all(senders.map(settledOf));
  expect([first, last]).toEqual(['acknowledged', 'acknowledged']);
  expect(damaged).toMatchObject({ status: 503, reason: 'store_unread' });
  expect(journal.quarantine.entries).toBe(1);
});

/** Appends return only when the returned function is called; shipping has their frames before. */
function holdAppends(): () => void {
  let release = () => {};
  const held = new Promise<void>((resolve) => {
    release = resolve;
  });
  // The check of the owner follows the write, which makes the frames visible to the lane.
  const append = journal.append.bind(journal);
  vi.spyOn(journal, 'append').mockImplementation(async (frames) => {
    await append(frames);
    await held;
  });
  return release;
}

test('ingest.ack store: frames that are stored before their append has returned are acknowledged', async () => {
  await start(new SimDisk(), 'store');
  const release = holdAppends();
  const sender = send({ a: 1 });
  await vi.waitFor(() => expect(journal.rowsWaiting(0)).toBe(1), { timeout: 30_000 });
  await shipLane(0);
  release();
  expect(await sender.outcome).toBe('acknowledged');
});

test.each([
  ['store_refused', 'are refused', (orders: Set<bigint>) => ingest.notices.suspected(0, orders)],
  ['store_away', 'wait for their shard', (orders: Set<bigint>) => ingest.notices.delayed(0, orders)],
])('ingest.ack store: %s, also for rows that %s before their append has returned', async (reason, _what, say) => {
  await start(new SimDisk(), 'store');
  const release = holdAppends();
  const sender = send({ a: 1 });
  await vi.waitFor(() => expect(journal.rowsWaiting(0)).toBe(1), { timeout: 30_000 });
  const unit = await journal.next(0, { rowsMax: 10, bytesMax: 1e6 });
  say(new Set(unit!.orders));
  ingest.notices.stored(0, new Set(unit!.orders));
  await journal.confirm(unit!);
  ingest.notices.shipped();
  release();
  expect(await sender.outcome).toMatchObject({ status: 503, reason });
});

function settledOf(sender: Sender): Promise<'acknowledged' | Fault | 'waiting'> {
  return Promise.race([sender.outcome, new Promise<'waiting'>((resolve) => setTimeout(resolve, 30, 'waiting'))]);
}

test('ingest.ack store: a lane does not wait for the other one, and a message in both waits for both', async () => {
  await start(new SimDisk(), 'store');
  const old = Date.now() - 3 * 86_400_000;
  const [live, late] = [send({ a: 1 }), send({ ts: old, values: { a: 1 } })];
  const both = new Sender();
  const chunk = (ts: number): Chunk => {
    const rows = new Rows();
    rows.addDouble(keyOf('a')!, 1);
    rows.endRecord(7, ts);
    const encode = (stamp: FrameStamp) => rows.encode(stamp);
    const spans = () => rows.spans();
    return {
      count: 1,
      bytes: 100,
      records: 1,
      oldestTs: ts,
      newestTs: ts,
      encode,
      spans,
      converted: [] as never[],
    } as unknown as Chunk;
  };
  await vi.waitFor(() => expect([journal.rowsWaiting(0), journal.rowsWaiting(1)]).toEqual([1, 1]), { timeout: 30_000 });
  ingest.acceptDecoded([chunk(Date.now()), chunk(old)], both, device);
  await vi.waitFor(() => expect([journal.rowsWaiting(0), journal.rowsWaiting(1)]).toEqual([2, 2]), { timeout: 30_000 });
  await shipLane(0);
  expect(await Promise.all([live, late, both].map(settledOf))).toEqual(['acknowledged', 'waiting', 'waiting']);
  await shipLane(1);
  expect(await Promise.all([late, both].map(settledOf))).toEqual(['acknowledged', 'acknowledged']);
});

test('ingest.ack store: a late message that is stored before an earlier one is acknowledged, the earlier one is not', async () => {
  await start(new SimDisk(), 'store');
  const old = Date.now() - 3 * 86_400_000;
  const all = { rowsMax: 1e6, bytesMax: 1e9 };
  const first = send({ ts: old, values: { a: 1 } });
  await vi.waitFor(() => expect(journal.rowsUntaken(1)).toBe(1), { timeout: 30_000 });
  const long = (await journal.next(1, all))!;
  const second = send({ ts: old, values: { a: 2 } });
  await vi.waitFor(() => expect(journal.rowsUntaken(1)).toBe(1), { timeout: 30_000 });
  const short = (await journal.next(1, all))!;
  ingest.notices.stored(1, new Set(short.orders));
  await journal.confirm(short);
  ingest.notices.shipped();
  expect(await Promise.all([first, second].map(settledOf))).toEqual(['waiting', 'acknowledged']);
  ingest.notices.stored(1, new Set(long.orders));
  await journal.confirm(long);
  ingest.notices.shipped();
  expect(await settledOf(first)).toBe('acknowledged');
});

test('ingest.ack store: a message that waits too long is 503, and then nothing is taken until something is stored', async () => {
  await start(new SimDisk(), 'store', { storeAckMsMax: 1500 });
  const first = send({ a: 1 });
  expect(await first.outcome).toMatchObject({ status: 503, reason: 'store_slow' });
  expect(ingest.refusal()).toMatchObject({ status: 503, reason: 'store_away' });
  expect(() => send({ a: 2 })).toThrow(/has stored nothing/);
  await shipLane(0);
  expect(ingest.refusal()).toBeUndefined();
  const second = send({ a: 3 });
  await vi.waitFor(() => expect(journal.rowsWaiting(0)).toBe(1), { timeout: 30_000 });
  await shipLane(0);
  expect(await second.outcome).toBe('acknowledged');
});

test('ingest.ack store: closing refuses what ClickHouse has not stored, which a stop waits for', async () => {
  await start(new SimDisk(), 'store');
  expect(ingest.awaitsStore).toBe(false);
  const [stored, others] = [send({ a: 1 }), [send({ ts: 1, values: { b: 2 } }), send({ ts: 2, values: { b: 3 } })]];
  expect(ingest.awaitsStore).toBe(true);
  await vi.waitFor(() => expect(journal.rowsWaiting(0)).toBe(1), { timeout: 30_000 });
  await shipLane(0);
  expect(await stored.outcome).toBe('acknowledged');
  expect(ingest.awaitsStore).toBe(true);
  await ingest.close();
  for (const { outcome } of others) {
    const message = expect.stringMatching(/stops before .* is stored later/);
    expect(await outcome).toMatchObject({ status: 503, reason: 'store_slow', message });
  }
  expect(ingest.awaitsStore).toBe(false);
});

test('ingest.ack store: rows that ClickHouse refuses are never acknowledged', async () => {
  await start(new SimDisk(), 'store');
  const sender = send({ a: 1 });
  await vi.waitFor(() => expect(journal.rowsWaiting(0)).toBe(1), { timeout: 30_000 });
  const unit = await journal.next(0, { rowsMax: 10, bytesMax: 1e6 });
  ingest.notices.suspected(0, new Set([unit!.orderMax]));
  ingest.notices.stored(0, new Set(unit!.orders));
  await journal.confirm(unit!);
  ingest.notices.shipped();
  expect(await sender.outcome).toMatchObject({ status: 503, reason: 'store_refused' });
});

test('points later than tomorrow take the late lane: a message of many future days is not in the way of the present', async () => {
  await start(new SimDisk());
  const now = Date.now();
  await Promise.all([
    send({ ts: now + 3 * 86_400_000, values: { a: 1 } }).outcome,
    send({ ts: now, values: { b: 2 } }).outcome,
  ]);
  expect((await journaled(0)).map((row) => row.key)).toEqual(['b']);
  expect((await journaled(1)).map((row) => row.key)).toEqual(['a']);
});

test('closing writes out what has gathered', async () => {
  await start(new SimDisk());
  const senders = Array.from({ length: 10 }, () => send({ a: 1 }));
  await ingest.close();
  expect(await Promise.all(senders.map((sender) => sender.outcome))).toEqual(Array(10).fill('acknowledged'));
});

test('order numbers rise when the clock stops or is set back, and contain their writer', () => {
  let now = 1_700_000_000_000;
  const orders = new OrderClock({ now: () => now, monotonic: () => 0 }, 5, 0n);
  let last = 0n;
  for (let i = 0; i < 1000; i += 1) {
    if (i === 500) now -= 10_000;
    const order = orders.next();
    expect(order > last).toBe(true);
    expect(order & 16_383n).toBe(5n);
    last = order;
  }
  const successor = new OrderClock({ now: () => now, monotonic: () => 0 }, 5, last);
  expect(successor.next() > last).toBe(true);
});
