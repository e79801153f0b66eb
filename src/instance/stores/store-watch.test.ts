/** Starts without a store, the failures that end a start, and the log lines when a store stops and starts. */
import { afterEach, beforeEach, expect, test, vi } from 'vitest';
import { StartError } from '../../base/errors.ts';
import { limits } from '../../base/limits.ts';
import type { Log } from '../../base/log.ts';
import { StoreWatch, type WatchedStore } from './store-watch.ts';

let lines: string[] = [];
let watch: StoreWatch;

const say = (event: string, fields?: object) =>
  lines.push(`${event} ${(fields as { reason?: string }).reason ?? ''}`.trim());
const log: Log = { debug: () => {}, info: say, warn: say, error: say };

class FakeStore implements WatchedStore {
  readonly name;
  readonly title;
  prepared = 0;
  pingError: Error | undefined;
  prepareError: Error | undefined;

  constructor(name: 'clickhouse' | 'postgres') {
    this.name = name;
    this.title = name;
  }

  async ping(): Promise<void> {
    if (this.pingError) throw this.pingError;
  }

  async prepare(): Promise<void> {
    this.prepared += 1;
    if (this.prepareError) throw this.prepareError;
  }

  configurationError(error: unknown): StartError | undefined {
    return error instanceof StartError ? error : undefined;
  }

  isReported(error: unknown): boolean {
    return error === reported;
  }
}

const reported = new StartError('STREAM_NAME is a here and b on another host');

const refused = new Error('connect ECONNREFUSED');
let clickhouse: FakeStore;
let postgres: FakeStore;

beforeEach(() => {
  vi.useFakeTimers();
  lines = [];
  clickhouse = new FakeStore('clickhouse');
  postgres = new FakeStore('postgres');
  watch = new StoreWatch({ stores: [clickhouse, postgres], log, onChange: () => {} });
});

afterEach(async () => {
  const stopped = watch.stop();
  await vi.advanceTimersByTimeAsync(10_000);
  await stopped;
  vi.useRealTimers();
});

/** Resolves to the result of `begin` and the time at which it ended. */
async function begin(needed?: 'postgres', onMissing?: (reason: string) => void): Promise<string> {
  const result = watch.begin(limits.storesWaitMsMax, needed, onMissing).then(
    () => 'served',
    (error: Error) => error.message,
  );
  let outcome = 'waits';
  void result.then((text) => {
    outcome = text;
  });
  await vi.advanceTimersByTimeAsync(limits.storesWaitMsMax / 2);
  return outcome;
}

test('an unavailable store delays no start; its schema follows when it answers, once', async () => {
  clickhouse.pingError = refused;
  expect(await begin()).toBe('served');
  watch.enterService();
  expect(watch.parts).toEqual({ clickhouse: 'away', postgres: 'up' });
  expect(watch.reasons).toEqual(['clickhouse does not answer: connect ECONNREFUSED']);
  clickhouse.pingError = undefined;
  await vi.advanceTimersByTimeAsync(2 * limits.storeCheckMs);
  expect(watch.parts).toEqual({ clickhouse: 'up', postgres: 'up' });
  await vi.advanceTimersByTimeAsync(60_000);
  expect([clickhouse.prepared, postgres.prepared]).toEqual([1, 1]);
  expect(lines).toEqual(['store_away clickhouse does not answer: connect ECONNREFUSED', 'store_back']);
});

test('a reason that names the store is not put behind its name again', async () => {
  clickhouse.pingError = new Error('clickhouse ended at its start: signal SIGKILL');
  await begin();
  expect(watch.reasons).toEqual(['clickhouse ended at its start: signal SIGKILL']);
});

test('a slow schema delays a start for a while only', async () => {
  clickhouse.prepare = () => new Promise(() => {});
  expect(await begin()).toBe('waits');
  await vi.advanceTimersByTimeAsync(limits.storesWaitMsMax);
  expect(watch.parts).toEqual({ clickhouse: 'starting', postgres: 'up' });
});

test('the store that is needed is waited for as long as it takes, with one word about it', async () => {
  postgres.pingError = refused;
  const missing: string[] = [];
  expect(await begin('postgres', (reason) => missing.push(reason))).toBe('waits');
  await vi.advanceTimersByTimeAsync(600_000);
  expect(missing).toEqual(['postgres does not answer: connect ECONNREFUSED']);
  postgres.pingError = undefined;
  await vi.advanceTimersByTimeAsync(2 * limits.storeCheckMs);
  expect(watch.isPrepared('postgres')).toBe(true);
});

test('a wrong setting ends a start, and is a reason like any other in service', async () => {
  postgres.pingError = new StartError('wrong password');
  expect(await begin()).toBe('wrong password');
  watch.enterService();
  await vi.advanceTimersByTimeAsync(5_000);
  expect(watch.reasons).toEqual(['postgres does not answer: wrong password']);
});

test('a schema that cannot be made is tried again, later each time', async () => {
  clickhouse.prepareError = new Error('no space');
  expect(await begin()).toBe('served');
  await vi.advanceTimersByTimeAsync(600_000 - limits.storesWaitMsMax / 2);
  expect(clickhouse.prepared).toBeGreaterThan(600_000 / limits.storePrepareMsMax);
  expect(clickhouse.prepared).toBeLessThan(40);
  expect(lines).toEqual(['store_away clickhouse cannot be used yet: no space']);
});

test('a setting that differs from that of another host is no absence of the store that has it', async () => {
  postgres.pingError = refused;
  expect(await begin()).toBe('served');
  watch.enterService();
  postgres.pingError = undefined;
  postgres.prepareError = reported;
  await vi.advanceTimersByTimeAsync(2 * limits.storeCheckMs);
  expect(watch.parts).toEqual({ clickhouse: 'up', postgres: 'starting' });
  // `Membership` says which setting it is.
  expect(watch.reasons).toEqual([]);
  expect(lines).toEqual(['store_away postgres does not answer: connect ECONNREFUSED', 'store_back']);
});

test('a setting that differs from that of another host ends a start, without a line of the store', async () => {
  postgres.prepareError = reported;
  expect(await begin()).toBe(reported.message);
  expect(lines).toEqual([]);
});
