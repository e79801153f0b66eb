import { expect, test } from 'vitest';
import { silentLog } from '../../../test/harness/silent-log.ts';
import { steadySleep, useSteadyClock } from '../../../test/harness/steady-clock.ts';
import { unmeasuredClock } from '../clock/clock-offset.ts';
import type { InstanceState } from '../health/state.ts';
import { openMonitor } from './monitor.ts';

useSteadyClock();

const state: InstanceState = {
  status: 'ready',
  parts: { workers: 'up' },
  reasons: [],
  postgresReady: true,
  leader: 0,
  fleetWorkers: 2,
  isHomeHost: true,
  blocked: [],
  clock: unmeasuredClock,
};

test('scrapes that come at once share one collection, the next one has its own', async () => {
  let collections = 0;
  const metrics = async () => {
    collections += 1;
    // Fifty connections take their time.
    await steadySleep(collections === 1 ? 1_000 : 0);
    return `collections ${collections}\n`;
  };
  let status: InstanceState['status'] = 'ready';
  const parts = {
    address: '127.0.0.1',
    port: 0,
    state: () => ({ ...state, status }),
    silentHosts: () => [],
    metrics,
    log: silentLog,
  };
  const monitor = await openMonitor(parts);
  const ask = async (path: string, method = 'GET') => {
    const response = await fetch(`http://127.0.0.1:${monitor.port}${path}`, { method });
    return [response.status, await response.text()];
  };
  try {
    const texts = await Promise.all(Array.from({ length: 50 }, () => ask('/metrics')));
    expect(new Set(texts.map(String))).toEqual(new Set(['200,collections 1\n']));
    expect(await ask('/metrics')).toEqual([200, 'collections 2\n']);
    const scraped = await fetch(`http://127.0.0.1:${monitor.port}/metrics`);
    expect(scraped.headers.get('content-type')).toBe('text/plain; version=0.0.4; charset=utf-8');
    // `fetch` unpacks the answer, and asks for gzip by itself.
    expect(scraped.headers.get('content-encoding')).toBe('gzip');
    expect((await ask('/readyz'))[0]).toBe(200);
    status = 'degraded';
    expect((await ask('/readyz'))[0]).toBe(200);
    status = 'refusing';
    expect((await ask('/readyz'))[0]).toBe(503);
    expect([(await ask('/livez'))[0], (await ask('/metrics', 'POST'))[0], (await ask('/api/device'))[0]]).toEqual([
      200, 405, 404,
    ]);
    await expect(openMonitor({ ...parts, port: monitor.port })).rejects.toThrow(/MONITOR_BIND_PORT/);
  } finally {
    monitor.close();
  }
});
