/**
 * A host whose clock is ahead starts without PostgreSQL, so its order numbers are ahead, and is lost with its disk. A
 * delete that no report of the host could reach covers what the stream had taken before it.
 */
import { rmSync } from 'node:fs';
import { afterAll, beforeAll, test } from 'vitest';
import { type Device, eventually } from '../harness/api.ts';
import { queryClickhouse } from '../harness/clickhouse-queries.ts';
import { type Engine, startEngine } from '../harness/engine.ts';
import { MachineClock } from '../harness/machine-clock.ts';
import { NatsCluster } from '../harness/nats-cluster.ts';
import { hostSettings, type Stores, startStores } from '../harness/stores.ts';
import { streamSettings } from '../harness/stream-engine.ts';

const clock = new MachineClock();
const waitMsMax = 60_000;
let right: Engine;
let ahead: Engine;
let stores: Stores;
let nodes: NatsCluster;
let device: Device;

beforeAll(async () => {
  [stores, nodes] = await Promise.all([startStores(), NatsCluster.start()]);
  const settings = { STREAM_REDELIVER_SECONDS: '4', SHUTDOWN_DRAIN_MS_MAX: '1000' };
  const env = { ...hostSettings(stores), ...streamSettings(nodes), ...settings };
  right = await startEngine({ workers: 1, env });
  ahead = await startEngine({ workers: 1, env: { ...env, ...clock.environment } });
  device = await right.api.createDevice('ahead');
});

afterAll(async () => {
  await Promise.all([right?.destroyAtOnce(), ahead?.destroyAtOnce()]);
  await Promise.all([nodes?.stop(), stores?.stopAll()]);
  clock.remove();
});

async function accepted(engine: Engine, ts: number, key: string, value: number): Promise<void> {
  const body = JSON.stringify({ ts, values: { [key]: value } });
  await eventually(async () => (await engine.api.postTelemetry(device.token, body)) === 200, waitMsMax);
}

async function stored(key: string): Promise<string> {
  const sql = `select int from telemetry final where key = '${key}' and kind != 0 order by int`;
  return (await queryClickhouse(stores.clickhouse.address(), sql)).map(([value]) => value).join();
}

test('a delete covers what a host with a clock ahead, lost with its disk, had accepted before it, and nothing later', async () => {
  const ts = Date.now() - 60_000;
  await accepted(ahead, ts, 'known', 1);
  await ahead.knowsDevices();
  await eventually(async () => (await stored('known')) === '1', waitMsMax);
  await ahead.stop();
  await Promise.all([stores.clickhouse.kill(), stores.postgres.kill()]);
  clock.set(3_600);
  await ahead.start({}, 'workers');
  await accepted(ahead, ts, 'deleted', 1);
  await accepted(ahead, ts, 'kept', 1);
  await ahead.killAll();
  rmSync(ahead.dataDir, { recursive: true, force: true });
  await stores.postgres.start();
  const path = `/api/plugins/telemetry/DEVICE/${device.id}/timeseries/delete?keys=deleted&deleteAllDataForKeys=true`;
  await eventually(async () => {
    const { status } = await right.api.send('DELETE', path).catch(() => ({ status: 0 }));
    return status === 202;
  }, waitMsMax);
  await accepted(right, ts + 1, 'deleted', 2);
  await stores.clickhouse.start();
  await eventually(async () => (await stored('kept')) === '1' && (await stored('deleted')) === '2', waitMsMax);
}, 240_000);
