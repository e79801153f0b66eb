/**
 * The log of refused telemetry over all workers of a host: at the beginning, each minute, at a change of the reason,
 * and at the end.
 */
import { beforeEach, expect, test } from 'vitest';
import type { Log } from '../../base/log.ts';
import { type Refusal, RefusalWatch, type WorkerRefusals } from './refusal-watch.ts';

let lines: string[] = [];
let now = 0;
let watch: RefusalWatch;
let reports: WorkerRefusals[] = [];

const say = (event: string, fields: object = {}) =>
  lines.push([event, ...Object.entries(fields).map(([name, value]) => `${name}=${value}`)].join(' '));
const log: Log = { debug: () => {}, info: say, warn: say, error: say };
const full: Refusal = { reason: 'disk_full', message: 'Full.' };

beforeEach(() => {
  lines = [];
  now = 0;
  watch = new RefusalWatch(log, () => now);
  reports = [0, 1].map((worker) => ({ worker, refusal: undefined, refused: {} }));
});

/** Checks once a second; each worker in `refusing` refuses `perSecond` messages. */
function pass(seconds: number, refusing: readonly number[] = [], refusal = full, perSecond = 0): void {
  for (let n = 0; n < seconds; n += 1) {
    now += 1_000;
    reports = reports.map(({ worker, refused }) => {
      if (!refusing.includes(worker)) return { worker, refusal: undefined, refused };
      const count = (refused[refusal.reason] ?? 0) + perSecond;
      return { worker, refusal, refused: { ...refused, ...(count > 0 && { [refusal.reason]: count }) } };
    });
    watch.check(reports);
  }
}

test('one event for the host at the beginning, each minute and at the end, with length and count', () => {
  pass(10);
  pass(121, [0, 1], full, 50);
  pass(20);
  expect(lines).toEqual([
    'ingest_refusing reason=disk_full message=Full. workers=2 refusing=2 seconds=0 messages=100',
    'ingest_refusing reason=disk_full message=Full. workers=2 refusing=2 seconds=60 messages=6100',
    'ingest_refusing reason=disk_full message=Full. workers=2 refusing=2 seconds=120 messages=12100',
    'ingest_accepting after=disk_full seconds=120 messages=12100',
  ]);
});

test('a state without a message is an event when it lasts, and so is another reason', () => {
  pass(1, [0]);
  expect(lines).toEqual([]);
  pass(2, [0]);
  pass(2, [0, 1], { reason: 'backlog_full', message: 'Backlog.' });
  pass(10);
  expect(lines).toEqual([
    'ingest_refusing reason=disk_full message=Full. workers=2 refusing=1 seconds=0 messages=0',
    'ingest_refusing reason=backlog_full message=Backlog. workers=2 refusing=2 seconds=2 messages=0',
    'ingest_accepting after=backlog_full seconds=3 messages=0',
  ]);
});

test('messages that were refused between two checks are an event', () => {
  reports[0]!.refused = { loop_lag: 3 };
  watch.check(reports);
  pass(10);
  expect(lines).toEqual([
    'ingest_refusing reason=loop_lag message=the worker is overloaded workers=2 refusing=0 seconds=0 messages=3',
    'ingest_accepting after=loop_lag seconds=0 messages=3',
  ]);
});

test('a refusal that toggles is one, and a worker that was started again counts from zero', () => {
  for (let n = 0; n < 10; n += 1) {
    pass(2, [0], full, 10);
    pass(2);
  }
  reports[0] = { worker: 0, refusal: undefined, refused: { disk_full: 1 } };
  watch.check(reports);
  pass(10);
  expect(lines).toHaveLength(2);
  expect(lines[1]).toBe('ingest_accepting after=disk_full seconds=39 messages=201');
});

test('the end is called once', () => {
  let ends = 0;
  watch.onAccepting = () => {
    ends += 1;
  };
  pass(5, [0, 1], full, 1);
  pass(10);
  pass(5, [0, 1], full, 1);
  pass(10);
  expect(ends).toBe(1);
});
