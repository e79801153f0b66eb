/** `ingest.ack: stream`: each lane has commits, refusals and shares of its own. */
import { afterEach, expect, test, vi } from 'vitest';
import { systemClock as clock } from '../base/clock.ts';
import { dayMs } from '../base/durations.ts';
import { type Fault, unavailable } from '../base/errors.ts';
import { createLog } from '../base/log.ts';
import { Metrics } from '../base/metrics/metrics.ts';
import type { JournalFrame } from '../journal/journal.ts';
import { keyOf } from '../telemetry/keys.ts';
import { readBlock } from '../telemetry/read-block.ts';
import type { Rows } from '../telemetry/rows.ts';
import { Ingest } from './accept.ts';
import { checkIntervalMs } from './journal-health.ts';
import { OrderClock } from './order-number.ts';
import type { StreamOfLane, StreamRoom } from './stream-health.ts';

const daysAgo = 7 * 86_400_000;
const mebibyte = 1024 ** 2;

/** Streams whose appends end when the test says so. */
class Streams {
  readonly appends: { frames: readonly JournalFrame[]; end: () => void }[] = [];
  readonly refusals: [Fault | undefined, Fault | undefined] = [undefined, undefined];
  readonly rooms: [StreamRoom | undefined, StreamRoom | undefined] = [undefined, undefined];
  readonly backlogDiskBytes = 0;
  readonly orderMax = 0n;
  freeBytes = () => Number.POSITIVE_INFINITY;
  laneShipped = () => 0n;
  rowsWaiting = () => 0;

  append(frames: readonly JournalFrame[]): Promise<void> {
    // Rows that are written may be replaced after the end.
    const kept = frames.map((frame) => ({ ...frame, parts: [Buffer.concat(frame.parts)] }));
    return new Promise((end) => this.appends.push({ frames: kept, end }));
  }

  ofLane(lane: 0 | 1): StreamOfLane {
    return { refusal: () => this.refusals[lane], room: () => this.rooms[lane], deflation: () => 0.5 };
  }

  /** The values of the appends, in order. */
  get values(): number[][] {
    return this.appends.map(({ frames }) =>
      frames.flatMap(({ parts }) => readBlock(parts[0]!)).map(({ int }) => Number(int)),
    );
  }
}

const sender = (number: number, tenantId: string) => ({ id: `d${number}`, number, tenantId, customerId: null });
const decode = (_body: Uint8Array, points: { value: number; ts: number }[], _now: number, rows: Rows) => {
  for (const { value, ts } of points) {
    rows.addLong(keyOf('a')!, value);
    rows.endRecord(1, ts);
  }
  return points.length;
};

let ingest: Ingest;
let streams: Streams;
let settled: string[];

function start(nowMs = () => clock.now()): void {
  vi.useFakeTimers({ toFake: ['setTimeout', 'clearTimeout', 'setInterval', 'clearInterval'] });
  streams = new Streams();
  settled = [];
  ingest = new Ingest({
    journal: streams,
    streams: [streams.ofLane(0), streams.ofLane(1)],
    orders: new OrderClock(clock, 1, 0n),
    clock: { now: nowMs, micros: () => nowMs() * 1_000, monotonic: () => clock.monotonic() },
    log: createLog('fatal', 'test'),
    metrics: new Metrics(),
    ack: 'stream',
    storeAckMsMax: 1_000,
    backlogBytesMax: 1e9,
    freeDiskBytesMin: 0,
    lingerMsMax: 0,
    unsyncedBytesMax: 20_000,
    unsyncedMsMax: 2_000,
    onCommitted: () => {},
    onFailed: () => {},
  });
}

afterEach(() => {
  vi.useRealTimers();
});

function send(name: string, points: { value: number; ts: number }[], from = sender(1, 'mill')): void {
  const waiter = {
    acknowledge: () => settled.push(name),
    refuse: (fault: Fault) => settled.push(`${name} ${fault.reason}`),
  };
  ingest.accept(decode, Buffer.alloc(0), points, waiter, undefined, from);
}

async function turns(): Promise<void> {
  for (let n = 0; n < 5; n += 1) await new Promise((resolve) => setImmediate(resolve));
}

const now = () => Date.now();
const old = () => Date.now() - daysAgo;

test('live rows are written and acknowledged while late rows wait for their stream', async () => {
  start();
  send('late', [{ value: 1, ts: old() }]);
  send('live', [{ value: 2, ts: now() }]);
  await turns();
  expect(streams.values).toEqual([[1], [2]]);
  streams.appends[1]!.end();
  await turns();
  send('later', [{ value: 3, ts: now() }]);
  send('late again', [{ value: 4, ts: old() }]);
  await turns();
  // Late rows gather while an append of late rows runs.
  expect(streams.values).toEqual([[1], [2], [3]]);
  streams.appends[2]!.end();
  await turns();
  expect(settled).toEqual(['live', 'later']);
  streams.appends[0]!.end();
  await turns();
  expect(streams.values.at(-1)).toEqual([4]);
  streams.appends[3]!.end();
  await turns();
  expect(settled).toEqual(['live', 'later', 'late', 'late again']);
  await ingest.close();
});

test('a stop waits for both lanes', async () => {
  start();
  send('late', [{ value: 1, ts: old() }]);
  await turns();
  let isClosed = false;
  const closed = ingest.close().then(() => (isClosed = true));
  await turns();
  expect(isClosed).toBe(false);
  streams.appends[0]!.end();
  await closed;
});

/** The orders of frames in which the value is. */
function orderOf(value: number): bigint {
  const found = streams.appends
    .flatMap(({ frames }) => frames)
    .find(({ parts }) => readBlock(parts[0]!).some(({ int }) => Number(int) === value));
  return found!.order;
}

test('of two messages with the same point the later one counts, whatever their lanes', async () => {
  start();
  const ts = now();
  // The first append of live rows runs, so the next live rows wait for it.
  send('running', [{ value: 0, ts }]);
  await turns();
  send('live', [{ value: 1, ts }]);
  send('mixed', [
    { value: 2, ts: old() },
    { value: 3, ts },
  ]);
  await turns();
  // The mixed message has a point of the live message that has no order yet.
  expect(streams.values).toEqual([[0]]);
  send('follows', [{ value: 4, ts }]);
  streams.appends[0]!.end();
  await turns();
  expect(streams.values).toEqual([[0], [1], [2, 3, 4]]);
  expect(orderOf(3)).toBeGreaterThan(orderOf(1));
  for (const { end } of streams.appends) end();
  await ingest.close();
  expect(settled).toEqual(['running', 'live', 'mixed', 'follows']);
});

test('of two messages with the same point the later one counts at midnight, when the lane of its time changes', async () => {
  const midnight = Math.ceil(Date.now() / dayMs) * dayMs;
  // The append of the lane of the second message ends first.
  for (const [ts, ends] of [
    [midnight - 2 * dayMs, [1, 0, 2, 3]],
    [midnight + dayMs, [0, 1, 2, 3]],
  ] as const) {
    let nowMs = midnight - 50;
    start(() => nowMs);
    // Appends of both lanes run, so the next rows of each lane wait.
    send('running', [{ value: 0, ts: nowMs }]);
    send('late running', [{ value: 1, ts: old() }]);
    await turns();
    send('first', [{ value: 2, ts }]);
    nowMs = midnight + 50;
    vi.advanceTimersByTime(checkIntervalMs);
    send('second', [{ value: 3, ts }]);
    await turns();
    for (const i of ends) {
      streams.appends[i]?.end();
      await turns();
    }
    await ingest.close();
    expect(settled).toEqual(expect.arrayContaining(['first', 'second']));
    expect(orderOf(3) >= orderOf(2), `first in the ${ts < midnight ? 'live' : 'late'} lane`).toBe(true);
  }
});

test('late rows are refused alone, and too many that wait are refused as well', async () => {
  start();
  streams.refusals[1] = unavailable('stream_late', 'full');
  vi.advanceTimersByTime(checkIntervalMs);
  expect(() => send('late', [{ value: 1, ts: old() }])).toThrow('full');
  send('live', [{ value: 2, ts: now() }]);
  expect(ingest.refusal()).toBeUndefined();
  expect(ingest.recentRefusal(1)?.reason).toBe('stream_late');
  streams.refusals[1] = undefined;
  vi.advanceTimersByTime(checkIntervalMs);
  const many = Array.from({ length: 100 }, (_, i) => ({ value: i, ts: old() + i }));
  await expect(
    (async () => {
      for (let n = 0; n < 100; n += 1) send('late', many);
    })(),
  ).rejects.toMatchObject({ reason: 'stream_late', message: expect.stringMatching(/late rows is too slow/) });
  send('live again', [{ value: 3, ts: now() }]);
  await turns();
  for (const { end } of streams.appends) end();
  await turns();
  for (const { end } of streams.appends) end();
  await ingest.close();
  expect(settled).toContain('live again');
});

test('a full stream of live rows refuses everything, before it is decoded', () => {
  start();
  streams.refusals[0] = unavailable('stream_full', 'full');
  vi.advanceTimersByTime(checkIntervalMs);
  expect(ingest.refusal()?.reason).toBe('stream_full');
});

test('while a stream is more than half full a tenant has a share of it, and the other stream is not shared', async () => {
  start();
  const room = (bytes: number) => ({ bytes, bytesMax: 2 * mebibyte, at: clock.monotonic() });
  // All that is there above the half may be of this worker: 10 kB are free.
  streams.rooms[1] = room(2 * mebibyte - 10_000);
  vi.advanceTimersByTime(checkIntervalMs);
  const points = Array.from({ length: 100 }, (_, i) => ({ value: i, ts: old() + i }));
  let refused: Fault | undefined;
  for (let n = 0; n < 100 && refused === undefined; n += 1) {
    try {
      send('late', points, sender(n, 'mill'));
    } catch (error) {
      refused = error as Fault;
    }
    await turns();
    for (const { end } of streams.appends) end();
    await turns();
  }
  expect(refused).toMatchObject({
    reason: 'stream_late_share',
    message: expect.stringMatching(/this tenant has its share of the stream of late rows/),
  });
  send('other tenant', points, sender(1_000, 'bakery'));
  send('live', [{ value: 1, ts: now() }], sender(1, 'mill'));
  await turns();
  for (const { end } of streams.appends) end();
  await ingest.close();
  expect(settled).toEqual(expect.arrayContaining(['other tenant', 'live']));
});

test('senders have shares from the commit on after which a stream is more than half full', async () => {
  start();
  const at = clock.monotonic();
  const points = Array.from({ length: 100 }, (_, i) => ({ value: i, ts: now() - i }));
  const room = (bytes: number) => ({ bytes, bytesMax: 60_000, at });
  // The report stays the same: only what this worker publishes is added.
  streams.rooms[0] = room(0);
  vi.advanceTimersByTime(checkIntervalMs);
  let refused: Fault | undefined;
  for (let n = 0; n < 100 && refused === undefined; n += 1) {
    try {
      send('filler', points);
    } catch (error) {
      refused = error as Fault;
      break;
    }
    await turns();
    const { frames, end } = streams.appends.at(-1)!;
    streams.rooms[0] = room(streams.rooms[0].bytes + frames[0]!.parts[0]!.length / 2);
    end();
    await turns();
  }
  expect(refused).toMatchObject({
    reason: 'backlog_share',
    message: expect.stringMatching(/this device has its share/),
  });
  expect(streams.rooms[0].bytes).toBeLessThan(50_000);
  send('other tenant', points, sender(2, 'bakery'));
  await turns();
  streams.appends.at(-1)!.end();
  await ingest.close();
  expect(settled).toContain('other tenant');
});
