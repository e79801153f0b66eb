/** The pool with scripted threads: sizes, order, and threads that die. */
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import { pathToFileURL } from 'node:url';
import { afterAll, afterEach, expect, test, vi } from 'vitest';
import { silentLog } from '../../test/harness/silent-log.ts';
import { messageOf } from '../base/errors.ts';
import { Metrics } from '../base/metrics/metrics.ts';
import { type ReportOrder, ReportPool } from './pool.ts';

/** The member `format` is the order to the scripted thread. */
const thread = `
export default async function report({ format, queried }) {
  if (format === 'die while it queries') process.exit(3);
  if (format.startsWith('query')) await new Promise((resolve) => setTimeout(resolve, 100));
  queried.postMessage('answered');
  queried.close();
  if (format === 'die') process.exit(3);
  if (format === 'throw') throw new Error('a bug');
  if (format === 'spin') for (;;);
  if (format === 'for ever') await new Promise((resolve) => setTimeout(resolve, 600_000));
  if (format === 'hold') await new Promise((resolve) => setTimeout(resolve, 300));
  return { bytes: new TextEncoder().encode(format), rows: 1 };
}`;

const directory = mkdtempSync(join(tmpdir(), 'report-pool-'));
const file = join(directory, 'thread.mjs');
writeFileSync(file, thread);
let pool: ReportPool;
const abandoned: string[] = [];
/** Resolves when the tables of abandoned reports are dropped. */
let dropped = Promise.resolve();
const never = new AbortController().signal;

afterEach(() => pool.close());
afterAll(() => rmSync(directory, { recursive: true }));

function open(threads: number, queue: number, queriesMax = 2): void {
  abandoned.length = 0;
  dropped = Promise.resolve();
  pool = new ReportPool({
    threads,
    queue,
    queriesMax,
    thread: { timeoutMs: 60_000 } as never,
    onAbandoned: async (queryId) => {
      abandoned.push(queryId);
      await dropped;
    },
    log: silentLog,
    metrics: new Metrics(),
    entry: pathToFileURL(file),
  });
}

const run = (what: string, gone = never, tenantId = 'tenant', customerId: string | null = null, begun = () => {}) => {
  const prepare = async () => {
    begun();
    return { tenantId, format: what } as unknown as ReportOrder;
  };
  return pool.run({ tenantId, customerId }, prepare, gone).then(
    ({ bytes }) => Buffer.from(bytes).toString(),
    (error) => `${error.status ?? messageOf(error)}`,
  );
};

test.each([
  [1, 0],
  [1, 2],
  [3, 1],
])('%i threads and a queue of %i hold exactly their sum', async (threads, queue) => {
  open(threads, queue);
  const held = Array.from({ length: threads + queue }, () => run('hold'));
  expect([pool.running, pool.waiting]).toEqual([threads, queue]);
  expect(await run('one more')).toBe('429');
  expect(await Promise.all(held)).toEqual(held.map(() => 'hold'));
  expect([pool.running, pool.waiting]).toEqual([0, 0]);
  expect(await run('one more')).toBe('one more');
});

test('a thread that dies fails its own report; the others, and the next ones, are made', async () => {
  open(2, 10);
  const answers = await Promise.all(
    ['hold', 'die', 'a', 'throw', 'b', 'die while it queries', 'die while it queries'].map((what) => run(what)),
  );
  expect(answers).toEqual(['hold', '503', 'a', '503', 'b', '503', '503']);
  expect(await run('query')).toBe('query');
});

test('waiting reports are served in order, and may leave', async () => {
  open(1, 3);
  const done: string[] = [];
  const gone = new AbortController();
  const all = ['hold', 'a', 'b', 'c'].map((what) =>
    run(what, what === 'b' ? gone.signal : never).then((answer) => done.push(answer)),
  );
  gone.abort();
  expect(pool.waiting).toBe(2);
  await Promise.all(all);
  expect(done).toEqual(['408', 'hold', 'a', 'c']);
});

test('a report whose client has disconnected loses its thread at once, and its query ends', async () => {
  open(1, 1);
  const gone = new AbortController();
  const spinning = run('spin', gone.signal);
  const next = run('next');
  await sleep(200);
  expect(pool.running).toBe(1);
  gone.abort();
  expect(await spinning).toBe('408');
  expect(await next).toBe('next');
  expect(abandoned).toEqual([expect.stringMatching(/^report-/)]);
});

test('a report that lost its thread while it queried keeps its place of queries until its tables are dropped', async () => {
  open(3, 3, 1);
  let drop = () => {};
  dropped = new Promise((resolve) => {
    drop = resolve;
  });
  expect(await run('die while it queries')).toBe('503');
  let isMade = false;
  const first = run('of the reserved place', never, 'other');
  expect(await first).toBe('of the reserved place');
  const next = run('next').then((answer) => {
    isMade = true;
    return answer;
  });
  await vi.waitFor(() => expect(pool.running).toBe(1), 20_000);
  expect(await run('another', never, 'another')).toBe('another');
  expect(isMade).toBe(false);
  drop();
  expect(await next).toBe('next');
});

test('a tenant that fills the pool keeps no other tenant out', async () => {
  open(2, 2);
  const held = Array.from({ length: 4 }, () => run('hold'));
  // A thread of its own at once, then the place of the newest report that waits.
  const first = run('first', never, 'other');
  expect([pool.running, pool.waiting]).toEqual([3, 2]);
  const second = run('hold', never, 'other');
  expect([pool.running, pool.waiting]).toEqual([3, 2]);
  expect(await run('one more')).toBe('429');
  expect(await first).toBe('first');
  expect(await second).toBe('hold');
  expect(await Promise.all(held)).toEqual(['hold', 'hold', 'hold', '429']);
});

test('tenants take turns, and so do the customers of a tenant', async () => {
  open(1, 5);
  const done: string[] = [];
  const ask = (what: string, tenant: string, customer: string | null) =>
    run(what, never, tenant, customer).then((answer) => done.push(answer));
  // Keeps the further thread, so that the other reports end in the order in which they begin.
  const gone = new AbortController();
  const kept = run('for ever', gone.signal, 'c');
  await Promise.all([
    ask('hold', 'a', 'a1'),
    ask('a1', 'a', 'a1'),
    ask('a1 again', 'a', 'a1'),
    ask('a2', 'a', 'a2'),
    ask('b', 'b', null),
  ]);
  expect(done.filter((answer) => answer.startsWith('a'))).toEqual(['a1', 'a2', 'a1 again']);
  expect(done.indexOf('b')).toBeLessThan(done.indexOf('a2'));
  gone.abort();
  expect(await kept).toBe('408');
});

test('a customer leaves a quarter of the threads to its tenant', async () => {
  open(4, 4);
  const held = Array.from({ length: 4 }, () => run('hold', never, 'tenant', 'customer'));
  expect([pool.running, pool.waiting]).toEqual([3, 1]);
  expect(await run('quick')).toBe('quick');
  expect(await Promise.all(held)).toEqual(held.map(() => 'hold'));
});

test('what a report needs is read in its place: not while it waits, and never for one that is refused', async () => {
  open(1, 1);
  const read: string[] = [];
  const ask = (name: string, what: string) => run(what, never, 'tenant', null, () => void read.push(name));
  const [running, waiting] = [ask('running', 'hold'), ask('waiting', 'made')];
  expect(await ask('refused', 'never')).toBe('429');
  expect(read).toEqual(['running']);
  expect(await Promise.all([running, waiting])).toEqual(['hold', 'made']);
  expect(read).toEqual(['running', 'waiting']);
});

test('a report that is not prepared yet holds no place, and ends with its client', async () => {
  open(1, 1);
  let isReady = false;
  let tries = 0;
  const prepare = async () => {
    tries += 1;
    return isReady ? ({ tenantId: 'tenant', format: 'late' } as unknown as ReportOrder) : undefined;
  };
  const of = (gone: AbortSignal) => pool.run({ tenantId: 'tenant', customerId: null }, prepare, gone);
  const left = new AbortController();
  const abandoned = of(left.signal).catch((error: { reason: string }) => error.reason);
  await expect.poll(() => tries).toBeGreaterThan(1);
  await expect.poll(() => pool.running).toBe(0);
  expect(await run('meanwhile')).toBe('meanwhile');
  left.abort();
  expect(await abandoned).toBe('report_abandoned');
  const late = of(never);
  isReady = true;
  expect(Buffer.from((await late).bytes).toString()).toBe('late');
  expect(pool.running).toBe(0);
});
