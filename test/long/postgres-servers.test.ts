/**
 * PostgreSQL as operators run it: a primary with a standby that takes over, and PgBouncer in transaction mode. The
 * servers are those of Debian.
 */
import { setTimeout as sleep } from 'node:timers/promises';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { placeAt } from '../../src/device/sql/credential-log-store.ts';
import { readLastDeviceNumber } from '../../src/device/sql/number-store.ts';
import { pollStore } from '../../src/instance/stores/host-poll-store.ts';
import { openPostgres } from '../../src/postgres/client.ts';
import { migratePostgres } from '../../src/postgres/migrate.ts';
import { DebianPostgres, type PostgresNode } from '../harness/debian-postgres.ts';
import { type Engine, startEngine } from '../harness/engine.ts';
import { ok } from '../harness/people.ts';
import { newPlant } from '../harness/reports.ts';
import { silentLog } from '../harness/silent-log.ts';

const servers = new DebianPostgres();
let a: PostgresNode;
let b: PostgresNode;

beforeAll(async () => {
  a = await servers.primary();
}, 60_000);

afterAll(() => servers.remove([a, b]), 60_000);

test('PgBouncer in transaction mode is enough for migrations, devices, attributes, commands and reports', async () => {
  const port = await servers.pgBouncer(a);
  const url = `postgres://millrace@127.0.0.1:${port}/millrace`;
  const env = { DATABASE_URL: url, DATABASE_BEHIND_POOLER: 'true' };
  const engine = await startEngine({ workers: 2, reports: true, env });
  try {
    const { api } = engine;
    const device = await api.createDevice('pooled');
    expect(await api.postTelemetry(device.token, '{"k":1}')).toBe(200);
    const path = `/api/plugins/telemetry/DEVICE/${device.id}`;
    for (let n = 0; n < 20; n += 1) await ok('POST', `${path}/attributes/SHARED_SCOPE`, { n }, undefined, api);
    const [attribute] = await ok('GET', `${path}/values/attributes/SHARED_SCOPE?keys=n`, undefined, undefined, api);
    expect(attribute.value).toBe(19);
    const rpcId = await api.sendPersistent(device.id, { method: 'open', params: {} }, 'oneway');
    expect((await api.persistentState(rpcId)).status).toBe('QUEUED');
    await newPlant(['north', 'south'], api, `http://127.0.0.1:${engine.analyticsPort}`);
    const devices = await Promise.all(Array.from({ length: 40 }, (_, n) => api.createDevice(`pooled ${n}`)));
    await ok('DELETE', `/api/device/${devices[0]!.id}`, undefined, undefined, api);
    const list = await ok(
      'GET',
      '/api/tenant/devices?pageSize=100&page=0&textSearch=pooled',
      undefined,
      undefined,
      api,
    );
    expect(list.totalElements).toBe(40);
    expect(engine.output).not.toMatch(/"level":"(error|fatal)"/);
  } finally {
    await engine.destroy();
  }
});

test('a standby takes over: nothing is a 500, writes go on within 5 s, and telemetry never stops', async () => {
  b = await servers.standbyOf(a);
  const url = `postgres://millrace@127.0.0.1:${a.port},127.0.0.1:${b.port}/millrace?target_session_attrs=read-write`;
  const engine = await startEngine({ workers: 2, env: { DATABASE_URL: url } });
  const users = new Users(engine);
  try {
    await users.begin();
    // Stops the primary in order, and makes the standby the primary.
    await a.stop();
    await b.promote();
    await users.writeAgain();
    // The former primary comes back as a standby, and takes over again while the other one stays up, read-only.
    a.follow(b);
    await a.start();
    await eventuallySynced(b);
    await b.sql('alter system set default_transaction_read_only = on');
    await b.sql('select pg_reload_conf()');
    await users.refused();
    await eventuallySynced(b);
    await a.promote();
    await users.writeAgain();
    const { telemetry, saves } = await users.end();
    expect([...new Set(telemetry)]).toEqual([200]);
    expect(telemetry.length).toBeGreaterThan(10);
    // 503: the database cannot be reached at the moment.
    expect([...new Set(saves.map(({ status }) => status))].sort()).toEqual([200, 503]);
    const saved = saves.filter(({ status }) => status === 200);
    const device = () => ok('GET', `/api/device/${users.deviceId}`, undefined, undefined, engine.api);
    // The other worker may read from the server that is read-only for two seconds more.
    await expect.poll(async () => (await device()).additionalInfo.n, { timeout: 5_000 }).toBe(saved.at(-1)!.n);
  } finally {
    await users.end();
    await engine.destroy();
  }
});

test('a standby tells no number of a device, because its sequence is ahead of that of its primary', async () => {
  const standby = await servers.standbyOf(a);
  const urlOf = ({ port }: PostgresNode) => `postgres://millrace@127.0.0.1:${port}/millrace`;
  const [here, there] = [a, standby].map((node) => openPostgres({ url: urlOf(node), poolMax: 1, log: silentLog }));
  try {
    await migratePostgres(here!, { log: silentLog });
    await here!.query(`select nextval(pg_get_serial_sequence('device', 'number'))`);
    const sequence = `select last_value::bigint as last from device_number_seq`;
    const [last] = await here!.query<{ last: number }>(sequence);
    await expect
      .poll(async () => (await there!.query<{ last: number }>(sequence))[0]!.last)
      .toBeGreaterThan(last!.last);
    expect((await pollStore(here!, placeAt(0n))).lastDevice).toBe(last!.last);
    expect((await pollStore(there!, placeAt(0n))).lastDevice).toBeNull();
    expect(await readLastDeviceNumber(there!)).toBe(0);
  } finally {
    await Promise.all([here!.close(), there!.close()]);
    await standby.stop('immediate');
  }
});

test('a primary that is frozen is left for the one that takes over', async () => {
  const standby = await servers.standbyOf(a);
  const url = `postgres://millrace@127.0.0.1:${a.port},127.0.0.1:${standby.port}/millrace`;
  const engine = await startEngine({ workers: 2, env: { DATABASE_URL: url } });
  try {
    const { id } = await engine.api.createDevice('still');
    const has = () => standby.sql(`select count(*) from device where id = '${id}'`);
    await expect.poll(has).toBe('1');
    a.signal('SIGSTOP');
    await standby.promote();
    const begun = performance.now();
    const save = async () => {
      const device = { id: { entityType: 'DEVICE', id }, name: 'still' };
      return (await engine.api.send('POST', '/api/device', device)).status === 200;
    };
    // A call that waits for the former primary has 30 s; the next calls do not wait for it.
    const saves: Promise<void>[] = [];
    let saved = 0;
    await expect
      .poll(
        () => {
          saves.push(save().then((isSaved) => void (saved += Number(isSaved))));
          return saved;
        },
        { timeout: 20_000, interval: 250 },
      )
      .toBeGreaterThan(2);
    expect(performance.now() - begun).toBeLessThan(15_000);
    a.signal('SIGCONT');
    await Promise.all(saves);
  } finally {
    a.signal('SIGCONT');
    await engine.destroy();
    await standby.stop('immediate');
  }
});

/** A device that sends, and an administrator who saves it again and again. */
class Users {
  readonly #engine: Engine;
  readonly #telemetry: number[] = [];
  readonly #saves: { n: number; status: number; at: number }[] = [];
  #token = '';
  deviceId = '';
  #running: Promise<unknown> | undefined;
  #ended = false;

  constructor(engine: Engine) {
    this.#engine = engine;
  }

  async begin(): Promise<void> {
    const { api } = this.#engine;
    ({ token: this.#token, id: this.deviceId } = await api.createDevice('switched'));
    // A worker reads the creation once more from the list of changes and then drops its entry.
    await sleep(2_500);
    this.#running = Promise.all([this.#send(), this.#save()]);
    await expect.poll(() => this.#saves.length).toBeGreaterThan(5);
  }

  /** Resolves when the last save was refused. */
  async refused(): Promise<void> {
    await expect.poll(() => this.#saves.at(-1)?.status).toBe(503);
  }

  /** Resolves when a save succeeds. */
  async writeAgain(): Promise<void> {
    const begun = performance.now();
    const isSaved = () => this.#saves.some(({ status, at }) => status === 200 && at > begun);
    await expect.poll(isSaved).toBe(true);
    expect(performance.now() - begun).toBeLessThan(5_000);
  }

  async end() {
    this.#ended = true;
    await this.#running;
    return { telemetry: this.#telemetry, saves: this.#saves };
  }

  async #send(): Promise<void> {
    while (!this.#ended) {
      this.#telemetry.push(await this.#engine.api.postTelemetry(this.#token, '{"k":1}'));
      await sleep(20);
    }
  }

  async #save(): Promise<void> {
    const { api } = this.#engine;
    for (let n = 0; !this.#ended; n += 1) {
      const device = { id: { entityType: 'DEVICE', id: this.deviceId }, name: 'switched', additionalInfo: { n } };
      const answer = await api.send('POST', '/api/device', device);
      await answer.arrayBuffer();
      this.#saves.push({ n, status: answer.status, at: performance.now() });
      await sleep(20);
    }
  }
}

/** Resolves when the standby of `primary` has all that the primary has written. */
async function eventuallySynced(primary: PostgresNode): Promise<void> {
  const query = `select count(*) from pg_stat_replication
                  where state = 'streaming' and replay_lsn = pg_current_wal_lsn()`;
  await expect.poll(() => primary.sql(query)).toBe('1');
}
