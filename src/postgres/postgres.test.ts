/** The client and the migrations against a real server. */

import { mkdtempSync, readdirSync, rmSync, writeFileSync } from 'node:fs';
import { connect, createServer, type Server, type Socket } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { eventually } from '../../test/harness/api.ts';
import { silentLog as silent } from '../../test/harness/silent-log.ts';
import { Fault, notFound } from '../base/errors.ts';
import { limits } from '../base/limits.ts';
import { openPostgres, type Postgres } from './client.ts';
import { type EmbeddedPostgres, startEmbeddedPostgres } from './embedded/embedded.ts';
import { migratePostgres } from './migrate.ts';
import { isAway, isUniqueViolation } from './postgres-error.ts';

/** A proxy that forwards connections to the server and has its own port. */
class Door {
  /** The ports from which the connections reach the server. */
  readonly ports = new Set<number>();
  readonly #target: { port: number; host: string };
  readonly #sockets = new Set<Socket>();
  #server: Server | undefined;
  #port = 0;

  constructor(port: number, host: string) {
    this.#target = { port, host };
  }

  get address(): string {
    return `127.0.0.1:${this.#port}`;
  }

  async open(): Promise<void> {
    const server = createServer((socket) => {
      const onward = connect(this.#target, () => this.ports.add(onward.localPort!));
      for (const [each, other] of [
        [socket, onward],
        [onward, socket],
      ] as const) {
        this.#sockets.add(each);
        each.on('error', () => {});
        each.on('close', () => other.destroy());
        each.pipe(other);
      }
    });
    this.#server = server;
    await new Promise<void>((resolve) => server.listen(this.#port, '127.0.0.1', resolve));
    this.#port = (server.address() as { port: number }).port;
  }

  /** Forwards nothing more; connections stay. */
  hold(): void {
    for (const socket of this.#sockets) socket.unpipe();
  }

  cut(): void {
    for (const socket of this.#sockets) socket.destroy();
    this.#sockets.clear();
  }

  async close(): Promise<void> {
    this.cut();
    await new Promise((resolve) => this.#server?.close(resolve));
  }
}

const dir = mkdtempSync(join(tmpdir(), 'millrace-postgres-'));
let server: EmbeddedPostgres;
let postgres: Postgres;

const start = (port = 0) =>
  startEmbeddedPostgres({ dir: join(dir, 'pg'), port, password: 'a b/c', runDir: join(dir, 'run'), log: silent });
const failure = async (promise: Promise<unknown>) => {
  try {
    await promise;
  } catch (error) {
    return error as Error;
  }
  throw new Error('it did not fail');
};

beforeAll(async () => {
  server = await start();
  postgres = openPostgres({ url: server.url, poolMax: 4, log: silent });
}, 60_000);

afterAll(async () => {
  await postgres.close();
  await server.stop();
  rmSync(dir, { recursive: true, force: true });
}, 60_000);

describe('queries', () => {
  it('gives int8 as numbers and refuses unsafe ones', async () => {
    const [row] = await postgres.query('select 9007199254740991::int8 as n, array[1, null, 3]::int8[] as list');
    expect(row).toEqual({ n: Number.MAX_SAFE_INTEGER, list: [1, null, 3] });
    expect(await failure(postgres.query('select 9007199254740992::int8'))).toMatchObject({ message: /^BUG/ });
    expect(await postgres.query('select 9007199254740993::text as n')).toEqual([{ n: '9007199254740993' }]);
  });

  it('names the unique index that refused a row, and keeps the connection', async () => {
    await postgres.query('create table one (id int primary key, name text constraint one_name unique)');
    await postgres.query('insert into one values ($1, $2)', [1, 'a']);
    const error = await failure(postgres.query('insert into one values ($1, $2)', [2, 'a']));
    expect([isUniqueViolation(error), isUniqueViolation(error, 'one_name')]).toEqual([true, true]);
    expect([isUniqueViolation(error, 'one_pkey'), isAway(error)]).toEqual([false, false]);
  });

  it('a server that has become read-only is unavailable for writes, and gets new connections', async () => {
    await postgres.query('create table kept (n int)');
    const own = openPostgres({ url: server.url, poolMax: 1, log: silent });
    const write = () => own.query('insert into kept values (1)');
    const backend = async () => (await own.query<{ pid: number }>('select pg_backend_pid() as pid'))[0]!.pid;
    await write();
    const before = await backend();
    await own.query('set session characteristics as transaction read only');
    expect(await failure(write())).toMatchObject({ status: 503, reason: 'postgres_away' });
    await write();
    expect(await backend()).not.toBe(before);
    await own.close();
  });

  it('ends a statement at its deadline with 503', async () => {
    const begun = performance.now();
    expect(await failure(postgres.query('select pg_sleep(20)', [], { timeoutMs: 100 }))).toMatchObject({
      status: 503,
      reason: 'postgres_away',
    });
    expect(performance.now() - begun).toBeLessThan(10_000);
    await postgres.ping();
  });
});

describe('snapshots', () => {
  it('end all their statements together at the deadline', async () => {
    const begun = performance.now();
    const endless = postgres.snapshot(
      async ({ query }) => {
        for (;;) await query('select pg_sleep(0.3)');
      },
      { timeoutMs: 1_000 },
    );
    expect(await failure(endless)).toMatchObject({ status: 503, reason: 'postgres_away' });
    expect(performance.now() - begun).toBeLessThan(10_000);
    await postgres.ping();
  });

  it('leave the server no more time for a statement than the statements before have left', async () => {
    const [setting] = await postgres.snapshot(
      async ({ query }) => {
        await query('select pg_sleep(1.2)');
        return await query<{ ms: number }>(
          `select setting::int as ms from pg_settings where name = 'statement_timeout'`,
        );
      },
      { timeoutMs: 20_000 },
    );
    expect(setting!.ms).toBeLessThanOrEqual(18_800);
    expect(setting!.ms).toBeGreaterThan(0);
  });
});

describe('transactions', () => {
  it('commits what resolves and undoes what throws, faults included', async () => {
    await postgres.query('create table two (id int)');
    await postgres.transaction((queries) => queries.query('insert into two values (1)'));
    const fault = notFound('No such thing.');
    const undone = postgres.transaction(async (queries) => {
      await queries.query('insert into two values (2)');
      throw fault;
    });
    expect(await failure(undone)).toBe(fault);
    expect(await postgres.query('select id from two')).toEqual([{ id: 1 }]);
  });

  it('does not pass a swallowed failure off as a commit', async () => {
    const swallowed = postgres.transaction(async (queries) => {
      await queries.query('insert into two values (3)');
      await queries.query('select broken').catch(() => {});
    });
    expect(await failure(swallowed)).toMatchObject({ message: /^BUG/ });
    expect(await postgres.query('select 1 from two where id = 3')).toEqual([]);
  });

  it('survives a connection that is cut between its statements', async () => {
    const cut = postgres.transaction(async (queries) => {
      const [{ pid } = { pid: 0 }] = await queries.query<{ pid: number }>('select pg_backend_pid() as pid');
      await postgres.query('select pg_terminate_backend($1)', [pid]);
      await new Promise((resolve) => setTimeout(resolve, 50));
      await queries.query('select 1');
    });
    expect(await failure(cut)).toMatchObject({ status: 503, reason: 'postgres_away' });
    await postgres.ping();
  });
});

describe('an unavailable server', () => {
  it('is 503 while stopped and works again on the same URL', async () => {
    const { port } = server;
    await server.stop();
    for (const attempt of [postgres.ping(), postgres.query('select 1'), postgres.transaction(async () => {})]) {
      const error = await failure(attempt);
      expect(error).toBeInstanceOf(Fault);
      expect(error).toMatchObject({ status: 503, reason: 'postgres_away' });
    }
    server = await start(port);
    await postgres.ping();
  }, 30_000);

  it('is 503 when it swallows what is sent', async () => {
    const hole = createServer(() => {});
    await new Promise<void>((resolve) => hole.listen(0, '127.0.0.1', resolve));
    const { port } = hole.address() as { port: number };
    const client = openPostgres({ url: `postgresql://a:b@127.0.0.1:${port}/x`, poolMax: 1, log: silent });
    expect(await failure(client.ping())).toMatchObject({ status: 503 });
    await client.close();
    hole.close();
  }, 10_000);
});

/** Errors of the network that no server caused: a route without a way, a firewall, a certificate, no files left. */
it.each([
  ['EINVAL', true],
  ['EACCES', true],
  ['EPERM', true],
  ['EADDRNOTAVAIL', true],
  ['EMFILE', true],
  ['CERT_HAS_EXPIRED', true],
  ['ERR_TLS_CERT_ALTNAME_INVALID', true],
  ['ERR_INVALID_ARG_TYPE', false],
  ['ERR_ASSERTION', false],
  ['42601', false],
])('an error with the code %s means that the server is unavailable: %s', (code, away) => {
  expect(isAway(Object.assign(new Error('no'), { code }))).toBe(away);
});

describe('several servers', () => {
  /** A server that silently accepts connections. */
  const holeServer = async () => {
    const hole = createServer(() => {});
    await new Promise<void>((resolve) => hole.listen(0, '127.0.0.1', resolve));
    return { hole, address: `127.0.0.1:${(hole.address() as { port: number }).port}` };
  };

  it('that are silent let no more callers wait than may wait for a connection', async () => {
    const holes = [await holeServer(), await holeServer()];
    const addresses = holes.map(({ address }) => address).join(',');
    const client = openPostgres({ url: `postgresql://a:b@${addresses}/x`, poolMax: 1, log: silent });
    const count = limits.postgresWaitersMax + 3;
    const reasons = await Promise.all(
      Array.from({ length: count }, () => failure(client.ping()).then((error) => (error as Fault).reason)),
    );
    expect(reasons.filter((reason) => reason === 'postgres_busy')).toHaveLength(3);
    await client.close();
    for (const { hole } of holes) hole.close();
  }, 30_000);

  it('of which the one in use has become read-only: a client that only reads leaves it', async () => {
    const { hostname, port, username, password, pathname } = new URL(server.url);
    const doors = [new Door(Number(port), hostname), new Door(Number(port), hostname)];
    await Promise.all(doors.map((door) => door.open()));
    const addresses = doors.map(({ address }) => address).join(',');
    const reader = openPostgres({
      url: `postgresql://${username}:${password}@${addresses}${pathname}`,
      poolMax: 1,
      log: silent,
    });
    const reads = () =>
      reader.query('select 1').then(
        () => 'rows',
        (error: Fault) => error.reason,
      );
    const reload = () => postgres.query('select pg_reload_conf()');
    try {
      expect(await reads()).toBe('rows');
      await postgres.query('alter system set default_transaction_read_only = on');
      await reload();
      // Neither address leads to a writable server.
      await expect.poll(reads, { timeout: 10_000 }).toBe('postgres_away');
    } finally {
      await postgres.query('alter system reset default_transaction_read_only');
      await reload();
    }
    await expect.poll(reads, { timeout: 10_000 }).toBe('rows');
    await reader.close();
    await Promise.all(doors.map((door) => door.close()));
  }, 30_000);

  it('that all call themselves writable: the one in use stays in use', async () => {
    const { hostname, port, username, password, pathname } = new URL(server.url);
    const doors = [new Door(Number(port), hostname), new Door(Number(port), hostname)] as const;
    const [first, second] = doors;
    await Promise.all(doors.map((door) => door.open()));
    await first.close();
    const url = `postgresql://${username}:${password}@${first.address},${second.address}${pathname}`;
    const client = openPostgres({ url, poolMax: 1, log: silent });
    const door = async () => {
      const [row] = await client.query<{ port: number }>('select inet_client_port() as port');
      return doors.findIndex((each) => each.ports.has(row!.port));
    };
    expect(await door()).toBe(1);
    await first.open();
    second.cut();
    await eventually(async () => {
      const found = await door().catch(() => undefined);
      return found === undefined ? undefined : { found };
    });
    expect(await door()).toBe(1);
    await client.close();
    await Promise.all(doors.map((each) => each.close()));
  }, 30_000);
});

it('a server that is silent: a ping says for how long it waited', async () => {
  const { hostname, port, username, password, pathname } = new URL(server.url);
  const door = new Door(Number(port), hostname);
  await door.open();
  const url = `postgresql://${username}:${password}@${door.address}${pathname}`;
  const client = openPostgres({ url, poolMax: 1, log: silent });
  await client.ping();
  door.hold();
  await expect(client.ping(300)).rejects.toMatchObject({ status: 503, cause: { message: 'no answer within 0.3 s' } });
  await door.close();
  await client.close();
});

it('calls that wait for a silent server are refused when the client is held', async () => {
  const { hostname, port, username, password, pathname } = new URL(server.url);
  const door = new Door(Number(port), hostname);
  await door.open();
  const accepted: Socket[] = [];
  const deaf = createServer((socket) => accepted.push(socket));
  await new Promise<void>((resolve) => deaf.listen(0, '127.0.0.1', resolve));
  const urls = [door.address, `127.0.0.1:${(deaf.address() as { port: number }).port}`].map((address) => {
    return `postgresql://${username}:${password}@${address}${pathname}`;
  });
  const [asked, connecting] = urls.map((url) => openPostgres({ url, poolMax: 1, log: silent })) as [Postgres, Postgres];
  await asked.ping();
  door.hold();
  const answers = Promise.allSettled([asked, asked, connecting].map((client) => client.query('select 1')));
  await eventually(async () => accepted.length === 1);
  asked.hold();
  connecting.hold();
  const late = new Promise<undefined>((resolve) => setTimeout(() => resolve(undefined), 3_000));
  const first = await Promise.race([answers, late]);
  expect(first?.map((answer) => answer.status === 'rejected' && answer.reason.status)).toEqual([503, 503, 503]);
  for (const socket of accepted) socket.destroy();
  await new Promise((resolve) => deaf.close(resolve));
  await connecting.close();
  await door.close();
  await door.open();
  asked.release();
  expect(await asked.query('select 1 as one')).toEqual([{ one: 1 }]);
  await asked.close();
  await door.close();
}, 30_000);

describe('two transactions in each other’s way', () => {
  it('end both, when each may be run again', async () => {
    await postgres.query('create table raced (id int primary key, n int); insert into raced values (1, 0), (2, 0)');
    const other = openPostgres({ url: server.url, poolMax: 1, log: silent });
    let runs = 0;
    let release: () => void = () => {};
    const both = new Promise<void>((resolve) => (release = resolve));
    const add = (client: Postgres, ids: number[]) =>
      client.transaction(
        async (queries) => {
          await queries.query('update raced set n = n + 1 where id = $1', [ids[0]]);
          runs += 1;
          if (runs === 2) release();
          await both;
          await queries.query('update raced set n = n + 1 where id = $1', [ids[1]]);
        },
        { again: true },
      );
    await Promise.all([add(postgres, [1, 2]), add(other, [2, 1])]);
    await other.close();
    expect(runs).toBeGreaterThan(2);
    expect(await postgres.query('select n from raced order by id')).toEqual([{ n: 2 }, { n: 2 }]);
  }, 30_000);
});

describe('migrations', () => {
  const files = (name: string, texts: Record<string, string>) => {
    const folder = mkdtempSync(join(dir, `${name}-`));
    for (const [file, text] of Object.entries(texts)) writeFileSync(join(folder, file), text);
    return folder;
  };
  const fresh = () => postgres.query('drop table if exists schema_migrations');

  it('are applied once though two hosts start together', async () => {
    await fresh();
    const folder = files('race', {
      '0001_three.sql': 'create table three (n int); select pg_sleep(0.2);',
      '0002_four.sql': 'insert into three values (1); create table four (n int);',
    });
    const other = openPostgres({ url: server.url, poolMax: 1, log: silent });
    await Promise.all([
      migratePostgres(postgres, { dir: folder, log: silent }),
      migratePostgres(other, { dir: folder, log: silent }),
    ]);
    await other.close();
    expect(await postgres.query('select n from three')).toEqual([{ n: 1 }]);
    await migratePostgres(postgres, { dir: folder, log: silent });
  });

  it('must not be edited once applied', async () => {
    await fresh();
    const folder = files('edit', { '0001_five.sql': 'select 1' });
    await migratePostgres(postgres, { dir: folder, log: silent });
    writeFileSync(join(folder, '0001_five.sql'), 'select 2');
    const error = await failure(migratePostgres(postgres, { dir: folder, log: silent }));
    expect(error).toMatchObject({ name: 'StartError', message: /0001_five\.sql was changed/ });
  });

  it('leave nothing when they fail', async () => {
    await fresh();
    const folder = files('fail', { '0001_six.sql': 'create table six (n int); select broken;' });
    const error = await failure(migratePostgres(postgres, { dir: folder, log: silent }));
    expect(error).toMatchObject({ name: 'StartError', message: /0001_six\.sql failed: column "broken"/ });
    expect(await postgres.query("select to_regclass('six') as six")).toEqual([{ six: null }]);
  });

  it('let an older host continue after a newer one', async () => {
    await fresh();
    const folder = files('newer', { '0001_a.sql': 'select 1', '0002_b.sql': 'select 1' });
    await migratePostgres(postgres, { dir: folder, log: silent });
    rmSync(join(folder, '0002_b.sql'));
    await migratePostgres(postgres, { dir: folder, log: silent });
  });

  it('keep what an earlier version has stored of the activity of devices', async () => {
    await postgres.query('create database earlier');
    const earlier = openPostgres({ url: server.url.replace(/[^/]*$/, 'earlier'), poolMax: 1, log: silent });
    const numbers = readdirSync('src/postgres/migrations').map((name) => Number(name.slice(0, 4)));
    await migratePostgres(earlier, { log: silent, only: numbers.filter((number) => number < 50) });
    // No foreign keys: the devices do not matter.
    await earlier.query('alter table device_activity drop constraint device_activity_device_fkey');
    await earlier.query('alter table attribute drop constraint attribute_device_fkey');
    await earlier.query(`insert into device_activity values
      (1, true, 1700000000123, 1690000000000, 1690000000007, null),
      (513, false, 1600000000456, null, null, 1600000600000),
      (514, false, 0, null, 1690000000009, null)`);
    await earlier.query(`insert into attribute (device, scope, key, kind, value, last_update_ts)
      select device, 3, key, 2, 'stale', 0 from device_activity, unnest(array['active', 'lastActivityTime',
        'inactivityAlarmTime', 'lastConnectTime', 'lastDisconnectTime', 'inactivityTimeout', 'note']) as key`);
    await migratePostgres(earlier, { log: silent });
    expect(
      await earlier.query(`select device, array_agg(key order by key) as keys from attribute group by 1 order by 1`),
    ).toEqual([
      { device: 1, keys: ['inactivityAlarmTime', 'inactivityTimeout', 'note'] },
      { device: 513, keys: ['inactivityTimeout', 'lastConnectTime', 'lastDisconnectTime', 'note'] },
      {
        device: 514,
        keys: ['active', 'inactivityAlarmTime', 'inactivityTimeout', 'lastActivityTime', 'lastConnectTime', 'note'],
      },
    ]);
    expect(
      await earlier.query('select device, key, value, last_update_ts as ts from activity_attribute order by 1, 2'),
    ).toEqual([
      { device: 1, key: 'active', value: '1', ts: 1700000000123 },
      { device: 1, key: 'lastActivityTime', value: '1700000000123', ts: 1700000000123 },
      { device: 1, key: 'lastConnectTime', value: '1690000000000', ts: 1690000000000 },
      { device: 1, key: 'lastDisconnectTime', value: '1690000000007', ts: 1690000000007 },
      { device: 513, key: 'active', value: '0', ts: 1600000600000 },
      { device: 513, key: 'inactivityAlarmTime', value: '1600000600000', ts: 1600000600000 },
      { device: 513, key: 'lastActivityTime', value: '1600000000456', ts: 1600000000456 },
      { device: 514, key: 'lastDisconnectTime', value: '1690000000009', ts: 1690000000009 },
    ]);
    await earlier.close();
  });
});
