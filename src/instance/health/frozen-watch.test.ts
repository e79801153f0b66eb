/** Events of a worker that lives and reports nothing: one at its beginning, one at its end. */
import { expect, test } from 'vitest';
import type { Log } from '../../base/log.ts';
import { FrozenWatch } from './frozen-watch.ts';

const events: object[] = [];
const note = (event: string, fields?: object) => void events.push({ event, ...fields });
const log: Log = { debug() {}, info: note, warn: note, error: note };
const seen = () => events.splice(0);

test('a worker without reports is logged once, and its return with the time since its last report', () => {
  let now = 50_000;
  const watch = new FrozenWatch(log, () => now);
  const silent = (worker: number, silentMs: number) => ({ worker, silentMs, reason: `worker-${worker} hangs` });
  watch.check([silent(0, 0), silent(1, 0)]);
  expect(seen()).toEqual([]);
  watch.check([silent(0, 0), silent(1, 10_500)]);
  expect(seen()).toEqual([{ event: 'worker_frozen', worker: 1, reason: 'worker-1 hangs' }]);
  now += 1_000;
  watch.check([silent(0, 0), silent(1, 11_500)]);
  expect(seen()).toEqual([]);
  now += 1_000;
  watch.check([silent(0, 0), silent(1, 0)]);
  expect(seen()).toEqual([{ event: 'worker_runs_again', worker: 1, awayMs: 12_500 }]);
});

test('a frozen worker that is killed does not run again: the supervisor logs its death', () => {
  const watch = new FrozenWatch(log, () => 50_000);
  watch.check([{ worker: 0, silentMs: 10_500, reason: 'hangs' }]);
  watch.check([]);
  watch.check([{ worker: 0, silentMs: 0, reason: '' }]);
  expect(seen()).toEqual([{ event: 'worker_frozen', worker: 0, reason: 'hangs' }]);
});
