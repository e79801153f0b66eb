/** A fleet whose devices have different latest values, and the calls that read them; answers are checked by content. */
import { recordKind } from '../../../src/clickhouse/latest-rows.ts';
import { eventually } from '../../../test/harness/api.ts';
import type { Engine } from '../../../test/harness/engine.ts';
import { requestBytes } from '../../../test/harness/raw.ts';
import { createFleet } from '../../engine-under-load.ts';
import { type Call, judged, makeCalls, right } from './calls.ts';

const postConnections = 64;
const storedMsMax = 300_000;

interface ReadFleet {
  /** Ids of devices, named `read-n`. */
  ids: string[];
  keys: string[];
  ts: number;
}

/** Resolves when every latest value is readable. */
export async function readFleet(engine: Engine, devices: number, keyCount: number): Promise<ReadFleet> {
  const keys = Array.from({ length: keyCount }, (_, k) => `key-${k}`);
  const ts = Date.now();
  const fleet = await createFleet(engine.api, 'read', devices);
  const posts = await makeCalls({
    port: engine.port,
    connections: postConnections,
    rate: 0,
    warmupSeconds: 0,
    seconds: Number.POSITIVE_INFINITY,
    callOf(n) {
      const device = fleet[n];
      if (!device) return undefined;
      const values = Object.fromEntries(keys.map((key, k) => [key, valueAt(n, k)]));
      const body = JSON.stringify({ ts, values });
      const request = requestBytes({ path: `/api/v1/${device.token}/telemetry`, body });
      return { request, outcomeOf: (status) => (status === 200 ? right : `status ${status}`) };
    },
  });
  if (judged(posts).failed > 0) throw new Error(`telemetry was answered ${JSON.stringify(posts.outcomes)}`);
  // A record has a byte 255 before the key of each of its points.
  const points = `if(kind = ${recordKind}, countSubstrings(key, char(255)), 1)`;
  const stored = async () => Number((await engine.clickhouse(`SELECT sum(${points}) FROM latest`))[0]![0]);
  await eventually(async () => (await stored()) >= devices * keys.length, storedMsMax, 200);
  return { ids: fleet.map(({ id }) => id), keys, ts };
}

function valueAt(device: number, key: number): number {
  return 100 * device + key + 0.5;
}

/** Reads the latest values of a random device: those of `keys`, or of all keys when none are given. */
export function latestCall({ ids, keys, ts }: ReadFleet, apiKey: string, some?: string[]): Call {
  const device = randomIndex(ids);
  const query = `?useStrictDataTypes=true${some ? `&keys=${some.join(',')}` : ''}`;
  const path = `/api/plugins/telemetry/DEVICE/${ids[device]}/values/timeseries${query}`;
  const isWhole = (body: string): boolean => {
    const latest = JSON.parse(body) as Record<string, { ts: number; value: unknown }[]>;
    const wanted = some ?? keys;
    return (
      Object.keys(latest).length === wanted.length &&
      wanted.every((key) => {
        const [point, ...more] = latest[key] ?? [];
        return point?.ts === ts && point.value === valueAt(device, keys.indexOf(key)) && more.length === 0;
      })
    );
  };
  return { request: getRequest(path, apiKey), outcomeOf: (status, body) => outcomeOf(status, body, isWhole) };
}

/** Reads a random device. */
export function deviceCall({ ids }: ReadFleet, apiKey: string): Call {
  const device = randomIndex(ids);
  const isThatOne = (body: string): boolean => {
    const { id, name } = JSON.parse(body) as { id: { id: string }; name: string };
    return id.id === ids[device] && name === `read-${device}`;
  };
  const request = getRequest(`/api/device/${ids[device]}`, apiKey);
  return { request, outcomeOf: (status, body) => outcomeOf(status, body, isThatOne) };
}

export function getRequest(path: string, apiKey: string): Buffer {
  return requestBytes({ method: 'GET', path, headers: { 'x-authorization': `ApiKey ${apiKey}` } });
}

export function outcomeOf(status: number, body: string, isRight: (body: string) => boolean): string {
  if (status !== 200) return `status ${status}`;
  return isRight(body) ? right : 'wrong content';
}

function randomIndex(list: unknown[]): number {
  return Math.floor(Math.random() * list.length);
}
