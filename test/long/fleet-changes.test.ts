/**
 * Two hosts with a large fleet. Workers of one host load all devices in bulk, while devices are deleted, renamed and
 * given other credentials through the other host: each is refused or accepted within a second on both hosts, over HTTP
 * and MQTT, and also after the load. While Redis is killed and started again, a change takes two seconds at most.
 */
import { setTimeout as sleep } from 'node:timers/promises';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { openPostgres } from '../../src/postgres/client.ts';
import { eventually } from '../harness/api.ts';
import { type Engine, startEngines } from '../harness/engine.ts';
import { codeOf, MqttClient } from '../harness/mqtt-client.ts';
import { silentLog as log } from '../harness/silent-log.ts';
import { hostSettings, type Stores, startStores } from '../harness/stores.ts';
import { call } from '../harness/tenants.ts';
import { connectToEachWorker } from '../harness/workers.ts';

/** Their load takes about half a second on an idle core. */
const fleet = 100_000;
const unavailable = 0x88;

let stores: Stores;
let here: Engine;
/** The host whose workers are killed, and load all devices when they start again. */
let there: Engine;
let changes = 0;
/** The tokens of all changes, each with whether a device has it now. */
const tokens = new Map<string, boolean>();

beforeAll(async () => {
  stores = await startStores();
  await insertFleet();
  const env = { ...hostSettings(stores), HTTP_TELL_WORKER: 'true' };
  [here, there] = await startEngines([
    { workers: 1, env },
    { workers: 2, env },
  ]);
  await eventually(() => loads() === 2, 60_000);
}, 180_000);

afterAll(async () => {
  await Promise.all([here?.destroy(), there?.destroy()]);
  await stores?.stopAll();
});

/** Devices of the tenant of the tests whose name is their token. */
async function insertFleet(): Promise<void> {
  const postgres = openPostgres({ url: stores.postgres.url, poolMax: 1, log });
  await postgres.transaction(
    async (queries) => {
      await queries.query(
        `insert into device (id, created_time, tenant_id, device_profile_id, name, device_data)
         select gen_random_uuid(), 1, p.tenant_id, p.id, 'fleet-' || n, '{}'
           from generate_series(1, $1::int) as n, device_profile p join user_account u on u.tenant_id = p.tenant_id
          where p.is_default and u.email = $2`,
        [fleet, 'admin@millrace.local'],
      );
      await queries.query(
        `insert into device_credentials (id, created_time, device_id, credentials_type, credentials_id)
         select gen_random_uuid(), 1, id, 'ACCESS_TOKEN', name from device where name like 'fleet-%'`,
      );
    },
    { timeoutMs: 120_000 },
  );
  await postgres.close();
}

const ok = (method: string, path: string, body?: unknown) => call(here.api, method, path, body);
const loads = () => there.events('devices_loaded').length;

/** Returns the status; 0 without an answer, as of a worker that is killed. */
async function post({ api }: Engine, token: string): Promise<number> {
  const init = { method: 'POST', headers: { connection: 'close' }, body: '{"a":1}' };
  const answer = await fetch(`${api.http}/api/v1/${token}/telemetry`, init).catch(() => undefined);
  await answer?.arrayBuffer().catch(() => {});
  return answer?.status ?? 0;
}

/** Returns the code of the CONNACK; undefined without one. */
async function signIn({ mqttPort: port }: Engine, token: string): Promise<number | undefined> {
  const client = await MqttClient.open({ port }).catch(() => undefined);
  const connack = await client?.connect({ token }).catch(() => undefined);
  client?.cut();
  return connack && codeOf(connack);
}

/** Throws when a host answers for the token as before the change, `lateMs` after the change. */
async function check(what: string, token: string, isValid: boolean, lateMs: number): Promise<void> {
  tokens.set(token, isValid);
  const changed = performance.now();
  const watch = async (name: string, host: Engine) => {
    // The earlier questions make the host look up the device, or remember the answer, before the change arrives.
    for (const ms of [0, lateMs / 2, lateMs]) {
      await sleep(changed + ms - performance.now());
      const [status, code] = await Promise.all([post(host, token), signIn(host, token)]);
      const isOld = isValid ? status === 401 || (code ?? 0) % unavailable > 0 : status === 200 || code === 0;
      if (isOld && ms === lateMs) throw new Error(`${what} ${token} ${name} after ${lateMs} ms: ${status}, ${code}`);
    }
  };
  await Promise.all([watch('here', here), watch('there', there), watch('there', there)]);
}

/** Changes the next device of the fleet, whose session on the other host must end when the device is refused. */
async function changeNext(lateMs: number): Promise<void> {
  changes += 1;
  const name = `fleet-${changes * 37}`;
  const device = await ok('GET', `/api/tenant/devices?deviceName=${name}`);
  const credentials = await ok('GET', `/api/device/${device.id.id}/credentials`);
  const session = await MqttClient.open({ port: there.mqttPort }).catch(() => undefined);
  await session?.connect({ token: name }).catch(() => {});
  switch (changes % 4) {
    case 0:
      await ok('DELETE', `/api/device/${device.id.id}`);
      await check('deleted', name, false, lateMs);
      break;
    case 1:
      await ok('POST', '/api/device/credentials', { ...credentials, credentialsId: `${name}-new` });
      await Promise.all([check('old token', name, false, lateMs), check('new token', `${name}-new`, true, lateMs)]);
      break;
    case 2: {
      const credentialsValue = JSON.stringify({ clientId: name, userName: 'mill', password: 'wheel' });
      await ok('POST', '/api/device/credentials', { ...credentials, credentialsType: 'MQTT_BASIC', credentialsValue });
      await check('without a token', name, false, lateMs);
      break;
    }
    default:
      await ok('POST', '/api/device', { ...device, name: `${name}-renamed` });
      await check('renamed', name, true, lateMs);
      session?.cut();
  }
  await session?.closed(5_000);
}

/** Changes devices until `work` has ended, and asks each worker for all that were ever changed. */
async function changesBeside(lateMs: number, work: () => Promise<void>): Promise<void> {
  let isOver = false;
  const working = work().finally(() => {
    isOver = true;
  });
  const running: Promise<void>[] = [];
  while (!isOver) {
    const change = changeNext(lateMs);
    // The first failure is thrown at the end.
    change.catch(() => {});
    running.push(change);
    await sleep(60);
  }
  await working;
  await Promise.all(running);
  const connections = await Promise.all([connectToEachWorker(here.port, 1), connectToEachWorker(there.port)]);
  for (const connection of connections.flat()) {
    const answers = new Map<string, boolean>();
    for (const token of tokens.keys()) {
      const { status } = await connection.ask({ path: `/api/v1/${token}/telemetry`, body: '{"a":1}' });
      expect([200, 401]).toContain(status);
      answers.set(token, status === 200);
    }
    expect(answers).toEqual(tokens);
    connection.close();
  }
}

async function killAndLoad(worker: string): Promise<void> {
  const before = loads();
  await there.kill(worker);
  await eventually(() => loads() > before, 60_000);
}

test('devices that are changed during the bulk load are refused or accepted within a second', async () => {
  await changesBeside(1_000, async () => {
    // Few of the changes of one load are younger than the file of known devices.
    for (const worker of ['worker-0', 'worker-1', 'worker-0', 'worker-1']) await killAndLoad(worker);
  });
}, 120_000);

test('devices that are changed during the bulk load, while Redis is killed and starts again', async () => {
  await changesBeside(2_000, async () => {
    const load = killAndLoad('worker-0');
    await stores.redis.kill();
    await load;
    await stores.redis.start();
    await killAndLoad('worker-1');
  });
}, 120_000);
