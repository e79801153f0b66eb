/** Latest values of one device, chosen at random, while the store knows a million series; nothing else runs. */
import { once } from 'node:events';
import { Agent, get, type IncomingMessage } from 'node:http';
import { availableParallelism } from 'node:os';
import { setTimeout as sleep } from 'node:timers/promises';
import type { Api } from '../../test/api.ts';
import { type Engine, startEngine } from '../../test/engine.ts';
import { createDevices } from '../engine-under-load.ts';
import { Histogram, summaryOf } from '../load/histogram.ts';
import { say, table, writeResult } from '../report.ts';
import type { BenchSettings } from '../settings.ts';

const p99MsMax = 10;
const postsAtOnce = 16;
const storedMsMax = 120_000;
/** Merges of the fill may go on for a while; idle means without them. */
const settleMs = 10_000;

export async function runLatest(settings: BenchSettings): Promise<boolean> {
  const { devices, keys, samples } = settings.latest;
  const engine = await startEngine({ workers: availableParallelism(), env: { LOG_LEVEL: 'warn' } });
  try {
    const tokens = await createDevices(engine.api, devices);
    await fill(engine, tokens, keys);
    await sleep(settleMs);
    const ids = await deviceIds(engine.api, 200);
    const four = Array.from({ length: 4 }, (_, n) => `key-${n}`);
    const someKeys = await measure(engine.api, ids, four, samples);
    const allKeys = await measure(engine.api, ids, [], samples);
    const rows = [
      ['4 keys', someKeys],
      [`all ${keys} keys`, allKeys],
    ] as const;
    table(
      [`latest among ${devices * keys} series`, 'p50 ms', 'p99 ms', 'max ms'],
      rows.map(([name, { p50Ms, p99Ms, maxMs }]) => [name, p50Ms, p99Ms, maxMs]),
    );
    say(`target: p99 ${p99MsMax} ms`);
    writeResult('latest', settings, { series: devices * keys, someKeys, allKeys });
    return someKeys.p99Ms <= p99MsMax;
  } finally {
    await engine.destroy();
  }
}

async function fill(engine: Engine, tokens: string[], keys: number): Promise<void> {
  const values = Object.fromEntries(Array.from({ length: keys }, (_, n) => [`key-${n}`, n + 0.5]));
  const body = JSON.stringify({ ts: Date.now(), values });
  let next = 0;
  const post = async (): Promise<void> => {
    while (next < tokens.length) {
      const token = tokens[next++]!;
      const status = await engine.api.postTelemetry(token, body);
      if (status !== 200) throw new Error(`telemetry was answered ${status}`);
    }
  };
  await Promise.all(Array.from({ length: postsAtOnce }, post));
  const deadline = performance.now() + storedMsMax;
  while (performance.now() < deadline) {
    const [[rows] = []] = await engine.clickhouse('SELECT count() FROM latest');
    if (Number(rows) >= tokens.length * keys) return;
    await sleep(200);
  }
  throw new Error(`the latest table is not full after ${storedMsMax} ms`);
}

async function deviceIds(api: Api, count: number): Promise<string[]> {
  const response = await api.send('GET', `/api/tenant/devices?pageSize=${count}&page=3&textSearch=bench`);
  const { data } = (await response.json()) as { data: { id: { id: string } }[] };
  return data.map(({ id }) => id.id);
}

async function measure(api: Api, ids: string[], keys: string[], samples: number) {
  const histogram = new Histogram();
  const key = await api.createKey();
  // Plain node:http on one kept connection: fetch would add a millisecond of its own.
  const agent = new Agent({ keepAlive: true, maxSockets: 1 });
  const query = keys.length > 0 ? `?keys=${keys.join(',')}` : '';
  for (let n = -20; n < samples; n += 1) {
    const id = ids[Math.floor(Math.random() * ids.length)]!;
    const startedAt = performance.now();
    await read(`${api.http}/api/plugins/telemetry/DEVICE/${id}/values/timeseries${query}`, key, agent);
    // The first ones warm up connections and code.
    if (n >= 0) histogram.record((performance.now() - startedAt) * 1000);
  }
  agent.destroy();
  return summaryOf(histogram);
}

async function read(url: string, key: string, agent: Agent): Promise<void> {
  const request = get(url, { agent, headers: { 'x-authorization': `ApiKey ${key}` } });
  const [response] = (await once(request, 'response')) as [IncomingMessage];
  response.resume();
  await once(response, 'end');
  if (response.statusCode !== 200) throw new Error(`latest was answered ${response.statusCode}`);
}
