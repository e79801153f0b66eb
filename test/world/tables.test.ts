/**
 * The tables of a world against a real PostgreSQL: random calls of the rooms' statements have the same results on both,
 * so a world that keeps its promises keeps them over PostgreSQL.
 */
import { afterAll, beforeAll, expect, test } from 'vitest';
import { seedDemoData, seedFirstTenant } from '../../src/admin/seed.ts';
import { ownValue } from '../../src/attributes/attributes.ts';
import { sharedScope } from '../../src/attributes/scope.ts';
import * as updates from '../../src/attributes/update-store.ts';
import * as writes from '../../src/attributes/write-store.ts';
import { PasswordHasher } from '../../src/auth/password.ts';
import { systemClock as clock } from '../../src/base/clock.ts';
import type { ClickHouse } from '../../src/clickhouse/client.ts';
import { bucketCount } from '../../src/clickhouse/shards.ts';
import type { StoredDevice } from '../../src/device/model/cached-device.ts';
import { lookUpDevices } from '../../src/device/sql/look-up-store.ts';
import * as journals from '../../src/ingest/journal-store.ts';
import * as maps from '../../src/instance/stores/shard-map-store.ts';
import type { Queries } from '../../src/postgres/client.ts';
import * as leases from '../../src/postgres/lease.ts';
import { sqlStateOf } from '../../src/postgres/postgres-error.ts';
import * as rpcs from '../../src/rpc/store.ts';
import { startTestPostgres, type TestPostgres } from '../harness/postgres-server.ts';
import { Random } from '../harness/random.ts';
import { statementOf, Tables } from './tables.ts';

const callsOfTest = 1_000;
const unknownDevice = 987_654_321;

let server: TestPostgres;
let devices: StoredDevice[];

beforeAll(async () => {
  server = await startTestPostgres();
  const passwords = new PasswordHasher(1, { ln: 10, r: 8, p: 1 });
  const parts = { postgres: server.postgres, passwords, clock };
  await seedFirstTenant(parts, { email: 'a@b.c', systemEmail: 's@b.c', password: 'pear-tree-7' });
  await seedDemoData(parts);
  await passwords.close();
  const empty = { rows: async () => [{ count: '0' }] } as unknown as ClickHouse;
  await maps.makeShardMap(server.postgres, empty, 1);
  const rows = await server.postgres.query<{ number: number }>('select number from device order by number limit 3');
  devices = await lookUpDevices(
    server.postgres,
    rows.map(({ number }) => number),
  );
}, 60_000);

afterAll(() => server.stop(), 60_000);

function queriesOf(tables: Tables): Queries {
  let transaction = 0n;
  return {
    query: async <Row>(text: string, values: unknown[] = []) => {
      transaction += 1n;
      return statementOf(text)(tables, values, {
        transaction,
        now: Date.now(),
        snapshot: `${transaction}:${transaction}:`,
      }) as Row[];
    },
  };
}

type Call = (queries: Queries) => Promise<unknown>;

/** Makes calls that a seed chooses. */
class Calls {
  readonly #random: Random;
  #count = 0;
  readonly #turns = [0, 0];
  readonly #ids: string[] = [];

  constructor(random: Random) {
    this.#random = random;
  }

  next(): [name: string, call: Call] {
    const calls = [
      ...[this.#rpc, this.#rpc, this.#shared, this.#shared, this.#shared, this.#remove],
      ...[this.#cursor, this.#start, this.#offer, this.#read, this.#map, this.#mapUse, this.#journal, this.#lease],
    ];
    this.#count += 1;
    return this.#random.pick(calls).call(this);
  }

  #device(): StoredDevice {
    return this.#random.pick(devices);
  }

  #turn(): writes.Turn {
    const queue = this.#random.below(2);
    // Sometimes a turn is repeated, as after a lost answer.
    if (this.#turns[queue] === 0 || this.#random.next() < 0.8) this.#turns[queue]! += 1;
    return { queue: `00000000-0000-4000-8000-00000000000${queue}`, number: this.#turns[queue]! };
  }

  #keys(): string[] {
    return Array.from({ length: 1 + this.#random.below(3) }, () => this.#random.pick(['a', 'b', 'with "quotes"', '']));
  }

  #id(): string {
    return this.#ids.length > 0 ? this.#random.pick(this.#ids) : '00000000-0000-7000-8000-000000000000';
  }

  #rpc(): [string, Call] {
    const random = this.#random;
    const { number: device, tenantId, id: deviceId } = this.#device();
    const [owner, other] = ['11111111-0000-4000-8000-000000000000', '22222222-0000-4000-8000-000000000000'];
    const draw = random.below(9);
    if (draw <= 1) {
      const id = `00000000-0000-7000-8000-${String(this.#count).padStart(12, '0')}`;
      this.#ids.push(id);
      const command = { id, createdTime: 1, tenantId, deviceId, device, number: this.#count, method: 'm', params: '1' };
      const rest = {
        oneway: random.next() < 0.5,
        expirationTime: 9e12,
        retries: null,
        additionalInfo: null,
        callerCustomerId: null,
      };
      const owns = random.next() < 0.5 ? owner : null;
      return ['insertRpc', (queries) => rpcs.insertRpc(queries, { ...command, ...rest }, owns)];
    }
    const id = this.#id();
    if (draw === 2) {
      const counts = [1 + random.below(3), 2];
      return [
        'takeNumbers',
        async (queries) => [...(await rpcs.takeNumbers(queries, [device, unknownDevice], counts))],
      ];
    }
    if (draw === 3) {
      const status = random.pick(rpcs.rpcStatuses);
      const from = [random.pick(rpcs.rpcStatuses), 'QUEUED' as const];
      const change = { isFinal: random.next() < 0.2, ...(random.next() < 0.5 && { response: '1', attempts: 2 }) };
      return ['updateRpcStatus', (queries) => rpcs.updateRpcStatus(queries, id, status, from, change)];
    }
    if (draw === 4) {
      const number = 1 + random.below(this.#count);
      return [
        'answerRpc, keepsRpc',
        async (queries) => {
          await rpcs.answerRpc(queries, device, number, '2');
          return await Promise.all(this.#ids.map((each) => rpcs.keepsRpc(queries, owner, each)));
        },
      ];
    }
    if (draw === 5) {
      const rowsMax = 1 + random.below(3);
      const without = { device: random.next() < 0.5 ? [device] : [], customer: [], tenant: [] };
      return [
        'claimRpcs',
        async (queries) => {
          // No lease runs out between the calls to the two sides.
          for (const each of [owner, other]) await rpcs.releaseRpcs(queries, each, []);
          return await rpcs.claimRpcs(queries, other, rowsMax, without);
        },
      ];
    }
    const renewing = random.next() < 0.8 ? other : owner;
    if (draw === 6) return ['renewRpcs', (queries) => rpcs.renewRpcs(queries, renewing, [id])];
    if (draw === 7)
      return ['releaseRpcs', (queries) => rpcs.releaseRpcs(queries, owner, random.next() < 0.5 ? [id] : [])];
    return ['deleteRpc', (queries) => rpcs.deleteRpc(queries, tenantId, id)];
  }

  #shared(): [string, Call] {
    const turn = this.#turn();
    const rows = new Map(
      this.#keys().map((key) => {
        const device = this.#random.next() < 0.02 ? unknownDevice : this.#device().number;
        const value = this.#random.pick([
          ownValue.long(this.#count),
          ownValue.string('a "b" \\ c'),
          ownValue.boolean(true),
        ]);
        return [`${device} ${key}`, { device, scope: sharedScope, key, value, ts: this.#count }];
      }),
    );
    return [
      'upsertShared, readUnreplaced',
      async (queries) => [
        [...(await writes.upsertShared(queries, [...rows.values()], turn))].sort(),
        await writes.readUnreplaced(queries, [...rows.values()]),
      ],
    ];
  }

  #remove(): [string, Call] {
    const [turn, keys, now] = [this.#turn(), [...new Set(this.#keys())], this.#count];
    const device = this.#random.next() < 0.1 ? unknownDevice : this.#device().number;
    return [
      'deleteShared',
      async (queries) => {
        const { removed, version } = await writes.deleteShared(queries, device, keys, now, turn);
        return { removed: removed.sort(), version };
      },
    ];
  }

  #map(): [string, Call] {
    const random = this.#random;
    // Sometimes another call has written the version already.
    const versions = random.next() < 0.8 ? 1 : random.below(3);
    const shardOf = Uint8Array.from({ length: bucketCount }, () => random.below(3));
    const movesTo = Uint8Array.from({ length: bucketCount }, () => (random.next() < 0.5 ? 255 : random.below(3)));
    const isCopied = random.next() < 0.5;
    return [
      'readMovingMap, writeMovingMap',
      async (queries) => {
        const { version } = (await maps.readMovingMap(queries))!;
        const next = { version: version + versions, shardOf, movesTo, isCopied };
        const error = await maps.writeMovingMap(queries, next).catch(String);
        return [error, await maps.readMovingMap(queries)];
      },
    ];
  }

  #mapUse(): [string, Call] {
    const id = `33333333-0000-4000-8000-00000000000${this.#random.below(4)}`;
    const [draw, mapVersion] = [this.#random.next(), this.#random.below(9)];
    return [
      'writeMapUse, removeMapUse, readEarlierMapUses',
      async (queries) => {
        if (draw < 0.7) await maps.writeMapUse(queries, { id, host: `host ${id.at(-1)}`, mapVersion });
        else if (draw < 0.9) await maps.removeMapUse(queries, id);
        else await maps.removeOldMapUses(queries);
        return (await maps.readEarlierMapUses(queries, 5)).sort();
      },
    ];
  }

  #journal(): [string, Call] {
    const random = this.#random;
    const number = () => String(random.below(100));
    const [writer, run, orderHeld] = [1 + random.below(3), number(), random.next() < 0.5 ? null : number()];
    const orders = { orderHigh: number(), orderShipped: '0', orderDone: '0', orderRecovered: null, orderHeld };
    const [settled, mapVersion] = [random.below(9), random.below(9)];
    const own = { writer, run: random.next() < 0.5 ? '1' : run, ...orders, settled, mapVersion, isAhead: false };
    return [
      'writeJournals, readJournals',
      async (queries) => {
        await journals.writeJournals(queries, `host ${writer}`, [own]);
        return await journals.readJournals(queries);
      },
    ];
  }

  #lease(): [string, Call] {
    const [holder, draw] = [this.#random.pick(['a', 'b']), this.#random.next()];
    return [
      'takeLease, giveBackLease',
      async (queries) => {
        if (draw < 0.7) return await leases.takeLease(queries, 'moves', holder, 3_600_000);
        await leases.giveBackLease(queries, 'moves', holder);
      },
    ];
  }

  #cursor(): [string, Call] {
    const seen = () => this.#random.below(1 + this.#count);
    const cursors = [this.#device().number, unknownDevice].map((device) => {
      return { device, changesSeen: seen(), deletionsSeen: seen(), repeated: this.#random.next() < 0.3 };
    });
    return [
      'storeCursors, pruneDeletions',
      async (queries) => {
        await updates.storeCursors(queries, cursors);
        await updates.pruneDeletions(queries, [cursors[0]!.device]);
      },
    ];
  }

  #start(): [string, Call] {
    const cursors = [this.#device().number, unknownDevice].map((device) => {
      const place = this.#random.below(1 + this.#count);
      return { device, changesSeen: place, deletionsSeen: place, repeated: false };
    });
    return ['startCursors', (queries) => updates.startCursors(queries, cursors)];
  }

  #offer(): [string, Call] {
    const seen = () => (this.#random.next() < 0.3 ? null : this.#random.below(1 + this.#count));
    const confirmed = this.#random.next() < 0.5;
    const offer = { device: this.#device().number, changes: seen(), deletions: seen(), confirmed };
    return ['storeOffers', (queries) => updates.storeOffers(queries, [offer])];
  }

  #read(): [string, Call] {
    const numbers = [...devices.map(({ number }) => number), unknownDevice];
    const cursors = numbers.map((device) => {
      return { device, changesSeen: this.#random.below(this.#count), deletionsSeen: this.#random.below(this.#count) };
    });
    const since = this.#random.below(this.#count);
    return [
      'reads',
      async (queries) => {
        const heads = await updates.readHeads(queries, numbers);
        return {
          heads: heads
            .map(({ offeredMs: _, ...head }) =>
              pick(
                head,
                Object.keys(head).filter((name) => !hidden.includes(name)),
              ),
            )
            .sort((a, b) => Number(a['device']) - Number(b['device'])),
          before: [
            ...(await updates.readVersionsBefore(
              queries,
              numbers.map((device) => ({ device, since })),
            )),
          ].sort(),
          rows: await updates.readUpdateRows(queries, cursors),
          devices: (await lookUpDevices(queries, numbers)).sort((a, b) => a.number - b.number),
        };
      },
    ];
  }
}

/** Members that only the tables of a world have. */
const hidden = ['firstSeen', 'transaction', 'offeredTime'];

function pick(row: object, names: string[]): Record<string, unknown> {
  return Object.fromEntries(Object.entries(row).filter(([name]) => names.includes(name)));
}

/** Returns what the call returns, or the code of its refusal. Members that only one side has count as missing. */
async function resultOf(call: Call, queries: Queries): Promise<unknown> {
  try {
    const result = await call(queries);
    const plain = (_: string, value: unknown) => (value instanceof Set ? [...value] : value);
    return JSON.parse(JSON.stringify(result ?? null, plain)) as unknown;
  } catch (error) {
    return sqlStateOf(error) ?? String(error);
  }
}

/** Removes what only the tables of a world keep with a command. */
function withoutOwners(result: unknown): unknown {
  const each = (row: unknown): unknown => {
    if (typeof row !== 'object' || row === null || Array.isArray(row)) return row;
    const { open: _, owner: __, leasedUntil: ___, customerId: ____, ...rest } = row as Record<string, unknown>;
    return rest;
  };
  return Array.isArray(result) ? result.map(each) : each(result);
}

test('random calls of the statements have the same results', async () => {
  const tables = new Tables();
  for (const device of devices) tables.devices.set(device.number, { ...device });
  const simulated = queriesOf(tables);
  const calls = new Calls(new Random(17));
  for (let n = 0; n < callsOfTest; n += 1) {
    const [name, call] = calls.next();
    const real = await resultOf(call, server.postgres);
    expect(withoutOwners(await resultOf(call, simulated)), `call ${n}: ${name}`).toEqual(withoutOwners(real));
  }
});
