/**
 * Sends one data point as a device does, over HTTP, and waits until the point can be read from ClickHouse. Used by
 * `npm run doctor`. The point has the key `millraceDoctor`, which nothing else uses.
 */
import { causeMessageOf, messageOf } from '../base/errors.ts';
import { systemScheduler } from '../base/scheduler.ts';
import type { Shards } from '../clickhouse/shards.ts';
import { lookUpTokens } from '../device/sql/look-up-store.ts';
import type { Finding } from '../instance/host/machine.ts';
import type { Postgres } from '../postgres/client.ts';
import { readLatest } from '../telemetry/latest.ts';

interface RoundTripDeps {
  /** The instance: `http://host:8080`. */
  url: string;
  token: string;
  shards: Shards;
  postgres: Postgres;
}

const key = 'millraceDoctor';
const answerMsMax = 10_000;
const readableMsMax = 15_000;
const readEveryMs = 50;

export async function roundTrip({ url, token, shards, postgres }: RoundTripDeps): Promise<Finding> {
  const subject = 'round trip';
  const ts = Date.now();
  const began = performance.now();
  const fault = await send(url, token, ts);
  if (fault !== '') return { subject, level: 'fault', says: fault };
  const acknowledged = `A data point was acknowledged after ${milliseconds(began)}`;
  try {
    const device = (await lookUpTokens(postgres, [token])).get(token);
    if (!device) {
      const says = `${acknowledged}. It is not read back, because the PostgreSQL of these settings does not know its device.`;
      return { subject, level: 'warning', says };
    }
    while (performance.now() - began < readableMsMax) {
      const [point] = await readLatest(shards.of(device.number), device.number, [key]);
      if (point !== undefined && point.ts >= ts) {
        return { subject, level: 'ok', says: `${acknowledged} and could be read after ${milliseconds(began)}.` };
      }
      await systemScheduler.sleep(readEveryMs);
    }
    const seconds = readableMsMax / 1000;
    const says = `${acknowledged}, and ClickHouse does not have it after ${seconds} s: see \`npm run journal -- list\`.`;
    return { subject, level: 'warning', says };
  } catch (error) {
    return { subject, level: 'warning', says: `${acknowledged}, and cannot be read back: ${messageOf(error)}` };
  }
}

/** Returns what went wrong, without the token; '' after a 200. */
async function send(url: string, token: string, ts: number): Promise<string> {
  try {
    const response = await fetch(`${url}/api/v1/${encodeURIComponent(token)}/telemetry`, {
      method: 'POST',
      headers: { 'content-type': 'application/json' },
      body: JSON.stringify({ ts, values: { [key]: 1 } }),
      signal: AbortSignal.timeout(answerMsMax),
    });
    const text = (await response.text()).slice(0, 300);
    return response.status === 200 ? '' : `${url} answers a data point with ${response.status}: ${text}`;
  } catch (error) {
    return `${url} does not answer a data point: ${causeMessageOf(error)}.`;
  }
}

function milliseconds(since: number): string {
  return `${Math.round(performance.now() - since)} ms`;
}
