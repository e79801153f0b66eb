/**
 * Latest values that are records, over kills of workers of two hosts and over moves between two shards. Two gateways
 * send for fleets that are large enough for records. Each message is sent again until its acknowledgement, on the next
 * host each time, so the account knows the newest value of each key of each device.
 */
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { dirname, join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { createFleet } from '../../bench/engine-under-load.ts';
import { recordKind } from '../../src/clickhouse/latest-rows.ts';
import { type Device, eventually } from '../harness/api.ts';
import { queryClickhouse } from '../harness/clickhouse-queries.ts';
import { type Engine, engineMain, startEngines } from '../harness/engine.ts';
import { withMqtt } from '../harness/mqtt-client.ts';
import { hostSettings, type Stores, startShard, startStores } from '../harness/stores.ts';

/** Enough for records on each of two shards. */
const childrenOfGateway = 3_000;
const pauseMs = 300;
const killPauseMs = 1_500;
/** A service ends when all of its workers end soon after their starts. */
const livedMsMin = 4_000;
const readersCount = 32;
const firstTs = Date.now() - 3_600_000;
/** Each key is in several lists, and two lists have the same keys. */
const lists = [
  ['a', 'b', 'c'],
  ['c', 'b', 'a'],
  ['a', 'd'],
  ['b', 'c', 'd', 's'],
];

let stores: Stores;
let other: Awaited<ReturnType<typeof startShard>>;
let hosts: Engine[];
let fleets: Fleet[];

beforeAll(async () => {
  stores = await startStores();
  other = await startShard(stores);
  const env = { ...hostSettings(stores), CLICKHOUSE_SHARDS: other.url };
  hosts = await startEngines([
    { workers: 2, env },
    { workers: 2, env },
  ]);
  fleets = [await Fleet.make('at its time', true), await Fleet.make('at server time', false)];
}, 300_000);

afterAll(async () => {
  await Promise.all((hosts ?? []).map((host) => host.destroy()));
  await other?.stop();
  await stores?.stopAll();
});

/** The newest value of a key: its place in the order of values, which is also its value. */
type Newest = Map<string, number>;

class Fleet {
  readonly #name: string;
  readonly #gateway: Device;
  readonly #children: Device[];
  readonly #newest: Newest[];
  readonly #hasTs: boolean;
  #round = 0;
  #sends = 0;

  private constructor(name: string, gateway: Device, children: Device[], hasTs: boolean) {
    this.#name = name;
    this.#gateway = gateway;
    this.#children = children;
    this.#newest = children.map(() => new Map());
    this.#hasTs = hasTs;
  }

  static async make(name: string, hasTs: boolean): Promise<Fleet> {
    const [{ api }] = hosts as [Engine];
    const gateway = await api.createGateway(`gateway ${name}`);
    const prefix = hasTs ? 'own' : 'server';
    return new Fleet(prefix, gateway, await createFleet(api, prefix, childrenOfGateway), hasTs);
  }

  /** Sends one message with a record of each child. */
  async send(): Promise<void> {
    // With times of their own every second message is older than the one before.
    const place = this.#hasTs ? this.#round ^ 1 : this.#round;
    const keysOf = (n: number) => lists[(n + place) % lists.length]!;
    const sentValue = (key: string) => (key === 's' ? textOf(place) : place);
    const record = (n: number) => {
      const values = Object.fromEntries(keysOf(n).map((key) => [key, sentValue(key)]));
      return this.#hasTs ? { ts: firstTs + place, values } : values;
    };
    const body = Object.fromEntries(this.#children.map((_, n) => [`${this.#name}-${n}`, [record(n)]]));
    const payload = JSON.stringify(body);
    while (!(await this.#isAcknowledged(payload))) await sleep(50);
    for (const [n, newest] of this.#newest.entries()) {
      for (const key of keysOf(n)) newest.set(key, Math.max(place, newest.get(key) ?? 0));
    }
    this.#round += 1;
  }

  async #isAcknowledged(payload: string): Promise<boolean> {
    this.#sends += 1;
    const { mqttPort: port } = hosts[this.#sends % hosts.length]!;
    try {
      return await withMqtt({ port, token: this.#gateway.token }, async (client) => {
        const packet = client.publishPacket('v1/gateway/telemetry', payload);
        await client.write(packet);
        const { reasonCode } = await client.pick('puback', { messageId: packet.messageId! }, 60_000);
        return (reasonCode ?? 0) < 0x80;
      });
    } catch {
      return false;
    }
  }

  /** Returns the values of each of these children whose latest values over REST are not its newest ones. */
  async wrong(children: readonly number[]): Promise<Map<number, string>> {
    const found = new Map<number, string>();
    let next = 0;
    const read = async () => {
      for (let n = children[next++]; n !== undefined; n = children[next++]) {
        const latest = await hosts[n % hosts.length]!.api.readLatest(this.#children[n]!.id);
        const shown = Object.entries(latest).map(([key, [point]]) => {
          return `${key} ${point!.value}${this.#hasTs ? ` at ${point!.ts - firstTs}` : ''}`;
        });
        const expected = [...this.#newest[n]!].map(([key, place]) => {
          return `${key} ${key === 's' ? textOf(place) : place}${this.#hasTs ? ` at ${place}` : ''}`;
        });
        const [are, should] = [shown, expected].map((each) => each.sort().join(', '));
        if (are !== should) found.set(n, `${this.#name}-${n}: ${are}; not ${should}`);
      }
    };
    await Promise.all(Array.from({ length: readersCount }, read));
    return found;
  }
}

function textOf(place: number): string {
  return `place ${place}`;
}

/** Sends, and kills workers of both hosts in turn, until `during` has ended. Returns the number of kills. */
async function underKills(during: () => Promise<unknown>): Promise<number> {
  let isOver = false;
  const sending = fleets.map(async (fleet) => {
    while (!isOver) {
      await fleet.send();
      await sleep(pauseMs);
    }
  });
  let kills = 0;
  const seenAt = new Map<number, number>();
  const killing = (async () => {
    while (!isOver) {
      await sleep(killPauseMs * (0.5 + Math.random()));
      const now = performance.now();
      for (const pid of hosts.flatMap((each) => each.workers())) if (!seenAt.has(pid)) seenAt.set(pid, now);
      const host = hosts[kills % hosts.length]!;
      const role = `worker-${Math.floor(kills / hosts.length) % 2}`;
      if (now - (seenAt.get(host.pids().get(role) ?? 0) ?? now) < livedMsMin) continue;
      await host.kill(role);
      kills += 1;
    }
  })();
  try {
    await during();
  } finally {
    isOver = true;
    await Promise.all([...sending, killing]);
  }
  return kills;
}

const addresses = () => [stores.clickhouse.address(), other.address()];

/** Returns, for each shard, the devices whose newest values are in a record. */
async function devicesInRecords(): Promise<number[]> {
  const newest = 'SELECT device, argMax(kind, rank) AS kind FROM latest FINAL GROUP BY device';
  const query = `SELECT count() FROM (${newest}) WHERE kind = ${recordKind}`;
  const answers = await Promise.all(addresses().map((address) => queryClickhouse(address, query)));
  return answers.map((rows) => Number(rows[0]![0]));
}

async function expectNewest(): Promise<void> {
  for (const fleet of fleets) {
    let left = new Map(Array.from({ length: childrenOfGateway }, (_, n) => [n, 'not read']));
    await eventually(async () => {
      left = await fleet.wrong([...left.keys()]);
      return left.size === 0;
    }, 60_000).catch((cause: unknown) => {
      throw new Error(`${left.size} devices are wrong: ${[...left.values()].slice(0, 5).join('\n')}`, { cause });
    });
  }
}

/** Runs `npm run shards` with these words. */
async function moveShards(...words: string[]): Promise<void> {
  const command = join(dirname(engineMain), 'shards.js');
  // The stores were made by an instance that has ended, whose journal reports no more.
  const child = spawn(process.execPath, [command, ...words, '--without-silent'], { env: hosts[0]!.environment });
  let output = '';
  for (const stream of [child.stdout, child.stderr]) stream.on('data', (chunk) => (output += chunk));
  const [code] = (await once(child, 'close')) as [number];
  expect([code, output]).toEqual([0, expect.stringContaining('the buckets have moved')]);
}

test('each newest value is read after kills of the workers of both hosts', async () => {
  expect(await underKills(() => sleep(20_000))).toBeGreaterThan(3);
  await expectNewest();
  for (const count of await devicesInRecords()) expect(count).toBeGreaterThan(childrenOfGateway / 4);
});

test('each newest value is read after all devices have left a shard, while workers were killed', async () => {
  expect(await underKills(() => moveShards('empty', '1'))).toBeGreaterThan(0);
  await expectNewest();
  const [count] = await devicesInRecords();
  expect(count).toBeGreaterThan(childrenOfGateway / 2);
  await eventually(async () => {
    const [rows] = await queryClickhouse(other.address(), 'SELECT count() FROM latest');
    return rows![0] === '0';
  }, 30_000);
});

test('each newest value is read after half of the devices have moved back, while workers were killed', async () => {
  expect(await underKills(() => moveShards('balance'))).toBeGreaterThan(0);
  await expectNewest();
  for (const count of await devicesInRecords()) expect(count).toBeGreaterThan(childrenOfGateway / 4);
});
