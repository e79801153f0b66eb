/**
 * Two hosts under light load, and a PostgreSQL that is frozen, has no connection left, or loses the PgBouncer in front:
 * telemetry of known devices is acknowledged all the time, the REST API answers 503 with its reason within the deadline
 * of a statement, and everything works again without a restart. No stored command is lost, and none comes twice.
 */
import { setTimeout as sleep } from 'node:timers/promises';
import pg from 'pg';
import { afterAll, afterEach, beforeAll, expect, test } from 'vitest';
import { limits } from '../../src/base/limits.ts';
import { type Device, eventually } from '../harness/api.ts';
import { DebianPostgres, type PostgresNode } from '../harness/debian-postgres.ts';
import { type Engine, startEngines } from '../harness/engine.ts';
import { connectMqtt, type MqttClient } from '../harness/mqtt-client.ts';
import { hostSettings, type Stores, startStores } from '../harness/stores.ts';

const servers = new DebianPostgres();
/** Longer than the leases of commands and of work of one host. */
const absenceMs = 15_000;
/** Longer than the deadline of a statement. */
const frozenMs = limits.postgresStatementMsMax + 6_000;
/** A connection may have to be made before the statement begins. */
const answerMsMax = limits.postgresConnectMsMax + limits.postgresStatementMsMax + 2_000;
const healedMsMax = 30_000;
const commandsMax = 100;

let stores: Stores;
let node: PostgresNode;
let hosts: Engine[];

beforeAll(async () => {
  [stores, node] = await Promise.all([startStores(), servers.primary()]);
}, 60_000);

afterEach(async () => {
  await Promise.all((hosts ?? []).map((host) => host.destroy()));
  hosts = [];
});

afterAll(async () => {
  node?.signal('SIGCONT');
  await servers.remove([node]);
  await stores?.stopAll();
}, 60_000);

async function startHosts(url: string, behindPooler = false): Promise<Load> {
  const env = {
    ...hostSettings(stores),
    DATABASE_URL: url,
    ...(behindPooler && { DATABASE_BEHIND_POOLER: 'true' }),
  };
  hosts = await startEngines([
    { workers: 2, env },
    { workers: 2, env },
  ]);
  const load = new Load();
  await load.begin();
  return load;
}

interface Answer {
  status: number;
  body: string;
  ms: number;
  /** When the call began, after the start of the load. */
  at: number;
}

/** Devices that send to each host over both protocols, a user who reads and writes, and commands that wait. */
class Load {
  readonly telemetry: Answer[] = [];
  readonly rest: Answer[] = [];
  readonly #begun = performance.now();
  #isOver = false;
  #running: Promise<unknown> = Promise.resolve();
  #devices: Device[] = [];
  #waiting!: Device;
  #commands = 0;
  /** Numbers of the commands that were stored for certain. */
  readonly #stored = new Set<number>();

  async begin(): Promise<void> {
    const { api } = hosts[0]!;
    const names = [0, 1, 2].map((n) => ({ name: `load ${n} ${performance.now()}` }));
    const [first, second, waiting] = (await api.createDevices(names)) as [Device, Device, Device];
    this.#devices = [first, second];
    this.#waiting = waiting;
    for (const host of hosts) await host.api.adminToken();
    for (const [n, host] of hosts.entries()) {
      // Each worker knows the device.
      await eventually(async () => {
        const all = await Promise.all(Array.from({ length: 12 }, () => this.#post(host, this.#devices[n]!)));
        return all.every(({ status }) => status === 200);
      }, 10_000);
    }
    this.telemetry.length = 0;
    this.#running = Promise.all(
      hosts.flatMap((host, n) => [
        this.#repeat(() => this.#post(host, this.#devices[n]!)),
        this.#publish(host, this.#devices[n]!),
        this.#repeat(() => this.#ask(host, 'GET', `/api/device/${this.#devices[n]!.id}`)),
        this.#repeat(() =>
          this.#ask(
            host,
            'POST',
            `/api/plugins/telemetry/DEVICE/${this.#devices[n]!.id}/attributes/SERVER_SCOPE`,
            '{"a":1}',
          ),
        ),
        this.#repeat(() => this.#command(host)),
      ]),
    );
  }

  /** Resolves when both hosts serve everything again. */
  async healed(): Promise<void> {
    const since = performance.now() - this.#begun;
    await eventually(async () => {
      const states = await Promise.all(hosts.map((host) => host.status()));
      const later = this.rest.filter(({ at }) => at > since).slice(-20);
      return (
        states.every(({ status }) => status === 'ready') &&
        later.length === 20 &&
        later.every(({ status }) => status === 200)
      );
    }, healedMsMax);
  }

  async end(): Promise<void> {
    this.#isOver = true;
    await this.#running;
  }

  /** Connects the device for which commands wait, and returns the commands that it got. */
  async commands(): Promise<number[]> {
    const got: number[] = [];
    const client = await connectMqtt({ port: hosts[1]!.mqttPort, token: this.#waiting.token });
    try {
      await client.subscribe('v1/devices/me/rpc/request/+');
      while ([...this.#stored].some((n) => !got.includes(n))) {
        got.push((await client.message(undefined, { waitMsMax: 20_000 })).json.params);
      }
      await client.quiet();
    } finally {
      client.cut();
    }
    return got;
  }

  async #repeat(work: () => Promise<unknown>): Promise<void> {
    while (!this.#isOver) {
      await work();
      await sleep(100);
    }
  }

  async #timed(into: Answer[], url: string, init: RequestInit): Promise<Answer> {
    const begun = performance.now();
    const response = await fetch(url, { ...init, signal: AbortSignal.timeout(answerMsMax + 10_000) });
    const body = await response.text();
    const now = performance.now();
    const answer = { status: response.status, body, ms: now - begun, at: begun - this.#begun };
    into.push(answer);
    return answer;
  }

  async #post({ api }: Engine, { token }: Device): Promise<Answer> {
    const headers = { connection: 'close' };
    const init = { method: 'POST', headers, body: '{"a":1}' };
    return await this.#timed(this.telemetry, `${api.http}/api/v1/${token}/telemetry`, init);
  }

  async #publish({ mqttPort: port }: Engine, { token }: Device): Promise<void> {
    const client: MqttClient = await connectMqtt({ port, token });
    await this.#repeat(async () => {
      expect((await client.publish('v1/devices/me/telemetry', '{"m":1}')).reasonCode).toBe(0);
    });
    client.cut();
  }

  async #ask({ api }: Engine, method: string, path: string, body?: string): Promise<Answer> {
    const headers = {
      'x-authorization': `Bearer ${await api.adminToken()}`,
      connection: 'close',
      ...(body !== undefined && { 'content-type': 'application/json' }),
    };
    return await this.#timed(this.rest, `${api.http}${path}`, { method, headers, ...(body !== undefined && { body }) });
  }

  /** Stores a command. After a 503 it may have been stored as well. */
  async #command(host: Engine): Promise<void> {
    const n = this.#commands;
    if (n >= commandsMax) return;
    this.#commands += 1;
    const body = { method: 'once', params: n, persistent: true, expirationTime: Date.now() + 600_000 };
    const { status } = await this.#ask(host, 'POST', `/api/rpc/oneway/${this.#waiting.id}`, JSON.stringify(body));
    if (status === 200) this.#stored.add(n);
  }
}

async function check(load: Load): Promise<void> {
  await load.healed();
  await load.end();
  const refused = load.telemetry.filter(({ status }) => status !== 200);
  expect(refused.slice(0, 3)).toEqual([]);
  expect(Math.max(...load.telemetry.map(({ ms }) => ms))).toBeLessThan(5_000);
  const failed = load.rest.filter(({ status }) => status !== 200);
  expect(failed.length).toBeGreaterThan(0);
  for (const { status, body, ms } of failed) {
    expect(`${status} ${body}`).toMatch(/^503 /);
    expect(body).toMatch(/"message":"The database cannot be reached at the moment/);
    expect(ms).toBeLessThan(answerMsMax);
  }
  for (const host of hosts) {
    expect(await host.metric('worker_restarts_total')).toBe(0);
    expect(host.output).not.toMatch(/"level":"(error|fatal)"/);
  }
  const got = await load.commands();
  expect(got.length).toBeGreaterThan(0);
  expect(new Set(got).size).toBe(got.length);
}

test('PostgreSQL is frozen', async () => {
  const load = await startHosts(node.url);
  await sleep(2_000);
  node.signal('SIGSTOP');
  try {
    await sleep(frozenMs);
  } finally {
    node.signal('SIGCONT');
  }
  await check(load);
}, 180_000);

test.each([
  { when: 'while PostgreSQL is known to be frozen', isKnown: true },
  { when: 'just before PostgreSQL is known to be frozen', isKnown: false },
])(
  'a worker that starts $when serves known devices at once',
  async ({ isKnown }) => {
    const env = { ...hostSettings(stores), DATABASE_URL: node.url };
    hosts = await startEngines([{ workers: 1, env }]);
    const [host] = hosts as [Engine];
    const { token } = await host.api.newDevice();
    await host.knowsDevices();
    node.signal('SIGSTOP');
    try {
      const isAway = async () => (await host.status()).parts?.['postgres'] === 'away';
      if (isKnown) await eventually(isAway, 30_000);
      await host.kill('worker-0');
      if (!isKnown) await eventually(isAway, 30_000);
      const since = performance.now();
      await eventually(async () => (await host.api.postTelemetry(token, '{"a":1}')) === 200, answerMsMax);
      // One attempt to connect, which gets no answer, takes as long.
      expect(performance.now() - since).toBeLessThan(limits.postgresConnectMsMax);
    } finally {
      node.signal('SIGCONT');
    }
    await eventually(async () => (await host.status()).status === 'ready', healedMsMax);
    expect((await host.api.send('GET', '/api/auth/user')).status).toBe(200);
  },
  60_000,
);

test('others have all connections of PostgreSQL', async () => {
  const load = await startHosts(node.url);
  await sleep(1_000);
  const others: pg.Client[] = [];
  const until = performance.now() + absenceMs;
  const end = "select pg_terminate_backend(pid) from pg_stat_activity where application_name = 'millrace'";
  while (performance.now() < until) {
    const other = new pg.Client({ connectionString: node.url });
    other.on('error', () => {});
    try {
      await other.connect();
      others.push(other);
    } catch {
      await others[0]!.query(end);
    }
  }
  await Promise.all(others.map((other) => other.end()));
  await check(load);
}, 180_000);

test('PgBouncer is killed, and is unavailable for a while', async () => {
  const port = await servers.pgBouncer(node);
  const load = await startHosts(`postgres://millrace@127.0.0.1:${port}/millrace`, true);
  await sleep(1_000);
  await servers.withoutPgBouncer(node, port, () => sleep(5_000));
  await check(load);
}, 180_000);

test('PostgreSQL is frozen behind PgBouncer', async () => {
  const port = await servers.pgBouncer(node);
  const load = await startHosts(`postgres://millrace@127.0.0.1:${port}/millrace`, true);
  await sleep(1_000);
  node.signal('SIGSTOP');
  try {
    await sleep(frozenMs);
  } finally {
    node.signal('SIGCONT');
  }
  await check(load);
}, 180_000);
