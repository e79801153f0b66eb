/**
 * The tables of a world's PostgreSQL that the rooms of devices use, and what their statements do to these tables. A
 * statement is known by a part of its text. A statement that no entry knows is an error of the world.
 */
import { deletedKind } from '../../src/attributes/attribute-row.ts';
import { sharedScope } from '../../src/attributes/scope.ts';
import { limits } from '../../src/base/limits.ts';
import { bucketCount, firstShardMap } from '../../src/clickhouse/shards.ts';
import type { StoredDevice } from '../../src/device/model/cached-device.ts';
import type { LoggedChange } from '../../src/device/sql/credential-log-store.ts';
import type { MovingMap } from '../../src/instance/stores/shard-map-store.ts';
import type { OwnedRpc, RpcStatus } from '../../src/rpc/store.ts';

/** A statement at its commit. */
interface Commit {
  transaction: bigint;
  /** Milliseconds since 1970 by the clock of the database. */
  now: number;
  /** As PostgreSQL writes it. */
  snapshot: string;
}

interface HeadRow {
  device: number;
  version: number;
  changesSeen: number | null;
  deletionsSeen: number | null;
  changesOffered: number | null;
  deletionsOffered: number | null;
  offeredTime: number;
  repeated: boolean;
  transaction: bigint;
  /** The version at which the cursor of the device began; null while there is none. */
  firstSeen: number | null;
}

interface AttributeRow {
  device: number;
  scope: number;
  key: string;
  kind: number;
  value: string;
  ts: number;
  version: number;
}

type RpcRow = OwnedRpc & { open: boolean; owner: string | null; leasedUntil: number };

interface JournalRow {
  writer: number;
  host: string;
  run: string;
  orderHigh: string;
  orderHeld: string | null;
  settled: number;
  mapVersion: number;
  heardTime: number;
}

interface MapUseRow {
  id: string;
  host: string;
  mapVersion: number;
  heardTime: number;
}

export class Tables {
  readonly devices = new Map<number, StoredDevice>();
  readonly changes: (LoggedChange & { transaction: bigint; createdTime: number })[] = [];
  readonly numbers = new Map<number, number>();
  readonly rpcs = new Map<string, RpcRow>();
  readonly heads = new Map<number, HeadRow>();
  readonly attributes = new Map<string, AttributeRow>();
  readonly turns = new Map<string, number>();
  readonly journals = new Map<number, JournalRow>();
  readonly mapUses = new Map<string, MapUseRow>();
  readonly leases = new Map<string, { holder: string; until: number }>();
  /** True: no process is known, as in no PostgreSQL: a world must notice that moves of buckets do not wait. */
  liesAboutProcesses = false;
  /** With one store, no room reads it. */
  shardMap: MovingMap = { ...firstShardMap(1, 'none'), isCopied: false };
  #changeId = 0;

  /** Adds a row to the log of changed credentials. */
  log(device: StoredDevice, deleted: boolean, { transaction, now }: Commit): LoggedChange {
    this.#changeId += 1;
    const change = { credentialsId: device.name, deviceId: device.id, deviceNumber: device.number, deleted };
    const logged = { id: this.#changeId, ...change };
    this.changes.push({ ...logged, transaction, createdTime: now });
    return logged;
  }

  /** Deletes a device with all its rows. */
  deleteDevice(number: number): void {
    this.devices.delete(number);
    this.numbers.delete(number);
    this.heads.delete(number);
    for (const [id, { device }] of this.rpcs) if (device === number) this.rpcs.delete(id);
    for (const [name, { device }] of this.attributes) if (device === number) this.attributes.delete(name);
  }

  /** Returns the shared attributes of a device, also deleted ones that its cursor has not passed. */
  shared(number: number): AttributeRow[] {
    return [...this.attributes.values()].filter(({ device, scope }) => device === number && scope === sharedScope);
  }
}

type Statement = (tables: Tables, values: unknown[], commit: Commit) => object[];

/** A part of a statement's text → what the statement does. */
const statements: [part: string, run: Statement][] = [
  ['pg_current_snapshot', (_, __, { snapshot }) => [{ snapshot, timeline: '1' }]],
  ['from credential_changes', selectChanges],
  ['delete from credential_changes', () => []],
  ['k.version as "credentialsVersion"', selectDevices],
  ['insert into rpc_sequence', takeNumbers],
  ['insert into rpc (', insertRpc],
  ['update rpc set status = $2', updateRpc],
  ['as lasts,', keepsRpc],
  [`update rpc set status = 'SUCCESSFUL'`, answerRpc],
  ['update rpc set owner = $1', claimRpcs],
  ['update rpc set leased_until', renewRpcs],
  ['update rpc set owner = null', releaseRpcs],
  ['delete from rpc where id in', () => []],
  ['delete from rpc where id = $1', deleteRpc],
  ['as "offeredMs"', selectHeads],
  ['coalesce(max(a.version), 0)', selectVersionsBefore],
  ['from attribute_head where transaction_id >= $1', selectChangedHeads],
  ['deletions_seen = least(h.deletions_seen, excluded.deletions_seen)', startCursors],
  ['insert into attribute_head as h (device, version, changes_seen', storeCursors],
  ['update attribute_head h set', storeOffers],
  ['delete from attribute a using attribute_head h', pruneDeletions],
  ['h.version as "headVersion"', selectUpdates],
  ['stored as (', upsertShared],
  ['marked as (', deleteShared],
  ['with ordinality as w', selectUnreplaced],
  ['select version from attribute_head', ({ heads }, [device]) => versionOf(heads.get(device as number))],
  ['select key from attribute where device', selectLiveKeys],
  ['delete from attribute_turn', () => []],
  ['octet_length(key)', () => [{ bytes: 0 }]],
  ['from shard_map', selectShardMap],
  ['update shard_map set', updateShardMap],
  ['insert into shard_map_uses', upsertMapUse],
  ['delete from shard_map_uses where id', deleteMapUse],
  ['delete from shard_map_uses where not', deleteOldMapUses],
  ['select host from shard_map_uses', selectEarlierMapUses],
  ['insert into journals', upsertJournals],
  ['from journals order by writer', selectJournals],
  ['insert into lease', takeLease],
  ['delete from lease', giveBackLease],
  // No device of a store is deleted.
  ['update tombstones set applied_at = null', () => []],
  ['from tombstones where id = any', () => [{ count: 0 }]],
];

const known = new Map<string, Statement>();

/** Returns what the statement does. */
export function statementOf(text: string): Statement {
  let statement = known.get(text);
  if (!statement) {
    const found = statements.filter(([part]) => text.includes(part));
    // A longer part is of a more particular statement.
    statement = found.sort(([a], [b]) => b.length - a.length)[0]?.[1];
    if (!statement) throw new Error(`the world knows no such statement: ${text}`);
    known.set(text, statement);
  }
  return statement;
}

export function isRow({ kind }: AttributeRow): boolean {
  return kind !== deletedKind;
}

/** An error as PostgreSQL reports it. */
function violation(constraint: string): Error {
  return Object.assign(new Error(`violates ${constraint}`), { code: '23503', constraint, severity: 'ERROR' });
}

function selectChanges({ changes }: Tables, [running, ids, next, id, rowsMax]: unknown[]): object[] {
  const after = BigInt(next as string);
  const runningIds = new Map((running as string[]).map((transaction, n) => [transaction, (ids as number[])[n]!]));
  const isAfter = (row: (typeof changes)[number]) => {
    if (row.transaction !== after) return row.transaction > after;
    return row.id > (id as number);
  };
  return changes
    .filter((row) => isAfter(row) || row.id > (runningIds.get(String(row.transaction)) ?? Infinity))
    .sort((a, b) => (a.transaction === b.transaction ? a.id - b.id : a.transaction < b.transaction ? -1 : 1))
    .slice(0, rowsMax as number)
    .map((row) => ({ ...row, transaction: String(row.transaction) }));
}

function selectDevices({ devices }: Tables, [numbers]: unknown[]): object[] {
  return (numbers as number[]).flatMap((number) => devices.get(number) ?? []).map((row) => ({ ...row }));
}

function takeNumbers({ devices, numbers }: Tables, [wanted, counts]: unknown[]): object[] {
  return (wanted as number[]).flatMap((device, n) => {
    if (!devices.has(device)) return [];
    const next = (numbers.get(device) ?? 0) + (counts as number[])[n]!;
    numbers.set(device, next);
    return [{ device, next }];
  });
}

function insertRpc({ devices, rpcs }: Tables, values: unknown[], { now }: Commit): object[] {
  const names = ['id', 'createdTime', 'tenantId', 'deviceId', 'device', 'number', 'method', 'params', 'oneway'];
  names.push('expirationTime', 'retries', 'additionalInfo', 'owner');
  const row = Object.fromEntries(names.map((name, n) => [name, values[n]])) as unknown as RpcRow;
  if (!devices.has(row.device)) throw violation('rpc_device_id_fkey');
  const leasedUntil = row.owner === null ? Number.NEGATIVE_INFINITY : now + limits.rpcLeaseMs;
  const stored = { status: 'QUEUED' as const, response: null, attempts: 0, open: true, customerId: null, leasedUntil };
  const callerCustomerId = null;
  rpcs.set(row.id, { ...row, ...stored, callerCustomerId });
  return [{}];
}

function updateRpc({ rpcs }: Tables, [id, status, from, isFinal, response, attempts]: unknown[]): object[] {
  const row = rpcs.get(id as string);
  if (!row?.open || !(from as RpcStatus[]).includes(row.status)) return [];
  row.status = status as RpcStatus;
  row.open = isFinal !== true;
  row.response = (response as string | null) ?? row.response;
  row.attempts = (attempts as number | null) ?? row.attempts;
  return [{}];
}

function answerRpc({ rpcs }: Tables, [device, number, response]: unknown[]): object[] {
  const answered: object[] = [];
  for (const row of rpcs.values()) {
    const isAsked = row.device === device && row.number === number && row.open && !row.oneway;
    if (!isAsked || !['SENT', 'DELIVERED', 'TIMEOUT'].includes(row.status)) continue;
    Object.assign(row, { status: 'SUCCESSFUL', open: false, response });
    answered.push({});
  }
  return answered;
}

function claimRpcs({ rpcs }: Tables, values: unknown[], { now }: Commit): object[] {
  const [owner, rowsMax, leaseMs, devices] = values as [string, number, number, number[]];
  const isFree = (row: RpcRow) => row.leasedUntil < now || row.leasedUntil > now + 2 * limits.rpcLeaseMs;
  const claimed = [...rpcs.values()]
    .filter((row) => row.open && isFree(row) && !devices.includes(row.device))
    .sort((a, b) => (a.id < b.id ? -1 : 1))
    .slice(0, rowsMax);
  for (const row of claimed) Object.assign(row, { owner, leasedUntil: now + leaseMs });
  return claimed.map((row) => ({ ...row }));
}

function keepsRpc({ rpcs }: Tables, values: unknown[], { now }: Commit): object[] {
  const [id, owner, keptMs, livingMs, oddMs] = values as [string, string, number, number, number];
  const row = rpcs.get(id);
  if (!row?.open || row.owner !== owner) return [];
  const isOlder = (other: RpcRow) =>
    other.device === row.device &&
    other.open &&
    other.number < row.number &&
    ['QUEUED', 'TIMEOUT'].includes(other.status) &&
    other.owner !== null &&
    other.owner !== owner &&
    other.leasedUntil > now + livingMs &&
    other.leasedUntil < now + oddMs;
  const older = [...rpcs.values()].filter(isOlder).map(({ number }) => number);
  return [{ lasts: row.leasedUntil > now + keptMs, older: older.sort((a, b) => a - b) }];
}

function renewRpcs({ rpcs }: Tables, [owner, ids, leaseMs]: unknown[], { now }: Commit): object[] {
  return (ids as string[]).flatMap((id) => {
    const row = rpcs.get(id);
    if (!row?.open || row.owner !== owner) return [];
    row.leasedUntil = now + (leaseMs as number);
    return [{ id }];
  });
}

function releaseRpcs({ rpcs }: Tables, [owner, kept]: unknown[]): object[] {
  for (const row of rpcs.values()) {
    const isReleased = row.open && row.owner === owner && !(kept as string[]).includes(row.id);
    if (isReleased) Object.assign(row, { owner: null, leasedUntil: Number.NEGATIVE_INFINITY });
  }
  return [];
}

function deleteRpc({ rpcs }: Tables, [id, tenantId]: unknown[]): object[] {
  const row = rpcs.get(id as string);
  if (!row || row.tenantId !== tenantId) return [];
  rpcs.delete(row.id);
  return [{ ...row }];
}

function selectHeads({ heads }: Tables, [devices]: unknown[], { now }: Commit): object[] {
  return (devices as number[]).flatMap((device) => {
    const head = heads.get(device);
    return head ? [{ ...head, offeredMs: now - head.offeredTime }] : [];
  });
}

function selectVersionsBefore(tables: Tables, [devices, since]: unknown[]): object[] {
  return (devices as number[]).map((device, n) => {
    const before = tables.shared(device).filter(({ ts }) => ts < (since as number[])[n]!);
    return { device, version: Math.max(0, ...before.map(({ version }) => version)) };
  });
}

/** `place`: `placeValues`. */
function isUnseen({ transaction }: { transaction: bigint }, place: unknown[]): boolean {
  const [next, running] = place as [string, string[]];
  return transaction >= BigInt(next) || running.includes(String(transaction));
}

function selectChangedHeads({ heads }: Tables, [next, running, rowsMax]: unknown[]): object[] {
  return [...heads.values()]
    .filter((head) => isUnseen(head, [next, running]))
    .slice(0, rowsMax as number)
    .map(({ device, version }) => ({ device, version }));
}

function startCursors(tables: Tables, values: unknown[], { transaction }: Commit): object[] {
  const [devices, seen] = values as [number[], number[]];
  const least = (stored: number | null, place: number) => Math.min(stored ?? place, place);
  return [...devices.entries()].flatMap(([n, device]) => {
    if (!tables.devices.has(device)) return [];
    const head = tables.heads.get(device) ?? newHead(device, 0, transaction);
    tables.heads.set(device, head);
    head.firstSeen = least(head.firstSeen, seen[n]!);
    head.changesSeen = least(head.changesSeen, seen[n]!);
    head.deletionsSeen = least(head.deletionsSeen, seen[n]!);
    return [{ device, changesSeen: head.changesSeen, deletionsSeen: head.deletionsSeen }];
  });
}

function storeCursors(tables: Tables, values: unknown[], { transaction }: Commit): object[] {
  const [devices, changes, deletions, repeated] = values as [number[], number[], number[], boolean[]];
  for (const [n, device] of devices.entries()) {
    if (!tables.devices.has(device)) continue;
    const head = tables.heads.get(device) ?? newHead(device, 0, transaction);
    tables.heads.set(device, head);
    head.firstSeen ??= changes[n]!;
    head.changesSeen = Math.max(head.changesSeen ?? 0, changes[n]!);
    head.deletionsSeen = Math.max(head.deletionsSeen ?? 0, deletions[n]!);
    Object.assign(head, { changesOffered: null, deletionsOffered: null, repeated: repeated[n]! });
  }
  return [];
}

function storeOffers({ heads }: Tables, values: unknown[], { now }: Commit): object[] {
  const [devices, changes, deletions, confirmed] = values as [number[], number[], number[], boolean[]];
  const greatest = (a: number | null, b: number | null) => (a === null ? b : b === null ? a : Math.max(a, b));
  for (const [n, device] of devices.entries()) {
    const head = heads.get(device);
    if (!head) continue;
    const isSeen = confirmed[n]! || head.repeated;
    if (isSeen) {
      head.changesSeen = greatest(head.changesSeen, changes[n]!);
      head.deletionsSeen = greatest(head.deletionsSeen, deletions[n]!);
    } else {
      head.changesOffered = greatest(head.changesOffered, changes[n]!);
      head.deletionsOffered = greatest(head.deletionsOffered, deletions[n]!);
    }
    head.offeredTime = now;
    head.repeated = false;
  }
  return [];
}

function pruneDeletions({ heads, attributes }: Tables, [devices]: unknown[]): object[] {
  for (const [name, row] of attributes) {
    if (!(devices as number[]).includes(row.device) || row.scope !== sharedScope || row.kind !== deletedKind) continue;
    const seen = heads.get(row.device)?.deletionsSeen ?? null;
    if (seen !== null && row.version <= seen) attributes.delete(name);
  }
  return [];
}

function selectUpdates(tables: Tables, values: unknown[]): object[] {
  const [devices, changes, deletions] = values as [number[], number[], number[]];
  return devices.flatMap((device, n) => {
    const head = tables.heads.get(device);
    if (!head) return [];
    return tables
      .shared(device)
      .filter((row) => row.version > (isRow(row) ? changes[n]! : deletions[n]!))
      .sort((a, b) => a.version - b.version || (a.key < b.key ? -1 : 1))
      .map(({ key, kind, value }) => ({ device, headVersion: head.version, key, kind, value }));
  });
}

function upsertShared(tables: Tables, values: unknown[], commit: Commit): object[] {
  const [devices, keys, kinds, texts, times] = columns(values.slice(0, 5));
  const isGone = devices.some((device) => !tables.devices.has(Number(device)));
  const earlier = tables.turns.get(values[5] as string);
  if (!takeTurn(tables, values[5], values[6])) return [];
  if (isGone) {
    tables.turns.set(values[5] as string, earlier ?? 0);
    throw violation('attribute_head_device_fkey');
  }
  const versions = new Map<number, number>();
  for (const device of new Set(devices.map(Number))) versions.set(device, raised(tables, device, commit).version);
  for (const [n, key] of keys.entries()) {
    const device = Number(devices[n]);
    const row = { device, scope: sharedScope, key, kind: Number(kinds[n]), value: texts[n]!, ts: Number(times[n]) };
    tables.attributes.set(`${device} ${sharedScope} ${key}`, { ...row, version: versions.get(device)! });
  }
  return [...versions].map(([device, version]) => ({ device, version }));
}

function deleteShared(tables: Tables, values: unknown[], commit: Commit): object[] {
  const [device, keys, ts, queue, turn] = values as [number, string[], number, unknown, unknown];
  if (!takeTurn(tables, queue, turn)) return [{ key: null, version: null, taken: false }];
  if (!tables.devices.has(device)) return [{ key: null, version: null, taken: true }];
  const { version, deletionsSeen } = raised(tables, device, commit);
  const removed = tables.shared(device).filter((row) => isRow(row) && keys.includes(row.key));
  for (const row of removed) {
    if (deletionsSeen === null) tables.attributes.delete(`${device} ${sharedScope} ${row.key}`);
    else Object.assign(row, { kind: deletedKind, value: '', ts, version });
  }
  if (removed.length === 0) return [{ key: null, version, taken: true }];
  return removed.map(({ key }) => ({ key, version, taken: true }));
}

function selectUnreplaced({ attributes }: Tables, values: unknown[]): object[] {
  const [devices, keys, kinds, texts, times] = columns(values);
  return keys.flatMap((key, place) => {
    const row = attributes.get(`${devices[place]} ${sharedScope} ${key}`);
    const isSame = row?.kind === Number(kinds[place]) && row.value === texts[place] && row.ts === Number(times[place]);
    return row && isSame ? [{ place, version: row.version }] : [];
  });
}

function selectLiveKeys({ attributes }: Tables, [device, scope, keys]: unknown[]): object[] {
  return (keys as string[]).flatMap((key) => {
    const row = attributes.get(`${device} ${scope} ${key}`);
    return row && isRow(row) ? [{ key }] : [];
  });
}

function selectShardMap({ shardMap: { version, shardOf, movesTo, isCopied } }: Tables): object[] {
  return [{ version, shardOf: Buffer.from(shardOf), movesTo: Buffer.from(movesTo), isCopied }];
}

function updateShardMap(tables: Tables, values: unknown[]): object[] {
  const [version, shardOf, movesTo, isCopied] = values as [number, Buffer, Buffer, boolean];
  if (tables.shardMap.version !== version - 1) return [];
  if (shardOf.length !== bucketCount || movesTo.length !== bucketCount) throw violation('shard_map_check');
  tables.shardMap = { version, shardOf: new Uint8Array(shardOf), movesTo: new Uint8Array(movesTo), isCopied };
  return [{ id: 1 }];
}

function upsertMapUse({ mapUses }: Tables, [id, host, mapVersion]: unknown[], { now }: Commit): object[] {
  const row = { id: id as string, host: host as string, mapVersion: mapVersion as number, heardTime: now };
  mapUses.set(row.id, row);
  return [];
}

function deleteMapUse({ mapUses }: Tables, [id]: unknown[]): object[] {
  mapUses.delete(id as string);
  return [];
}

function deleteOldMapUses({ mapUses }: Tables, [staleMs]: unknown[], { now }: Commit): object[] {
  for (const [id, { heardTime }] of mapUses) if (Math.abs(now - heardTime) > (staleMs as number)) mapUses.delete(id);
  return [];
}

function selectEarlierMapUses(tables: Tables, [staleMs, version]: unknown[], { now }: Commit): object[] {
  const { mapUses, liesAboutProcesses } = tables;
  if (liesAboutProcesses) return [];
  return [...mapUses.values()]
    .filter((row) => row.mapVersion < (version as number) && Math.abs(now - row.heardTime) <= (staleMs as number))
    .map(({ host }) => ({ host }));
}

function upsertJournals({ journals }: Tables, values: unknown[], { now }: Commit): object[] {
  const [host, writers, runs, orders, , settled, held, maps] = values as [string, ...(string | number)[][]];
  for (const [n, writer] of writers!.entries()) {
    const before = journals.get(Number(writer));
    const run = String(runs![n]);
    journals.set(Number(writer), {
      ...{ writer: Number(writer), host, run, mapVersion: Number(maps![n]), heardTime: now },
      orderHigh: String(orders![n]),
      orderHeld: (held![n] as string | null) ?? null,
      settled: before?.run === run ? Math.max(before.settled, Number(settled![n])) : Number(settled![n]),
    });
  }
  return [];
}

function selectJournals({ journals, liesAboutProcesses }: Tables, [staleMs]: unknown[], { now }: Commit): object[] {
  if (liesAboutProcesses) return [];
  return [...journals.values()]
    .sort((a, b) => a.writer - b.writer)
    .map(({ heardTime, ...row }) => ({ ...row, isLive: Math.abs(now - heardTime) <= (staleMs as number) }));
}

function takeLease({ leases }: Tables, [name, holder, forMs]: unknown[], { now }: Commit): object[] {
  const [until, by] = [now + (forMs as number), holder as string];
  const before = leases.get(name as string);
  const mayWrite = !before || before.holder === by || before.until < now || before.until > until;
  if (!mayWrite) return [];
  const lease = { holder: !before || before.until < now ? by : before.holder, until };
  leases.set(name as string, lease);
  return [{ holder: lease.holder }];
}

function giveBackLease({ leases }: Tables, [name, holder]: unknown[]): object[] {
  if (leases.get(name as string)?.holder === holder) leases.delete(name as string);
  return [];
}

/** Returns the head of the device with its next version. */
function raised({ heads }: Tables, device: number, { transaction }: Commit): HeadRow {
  const head = heads.get(device) ?? newHead(device, 0, transaction);
  heads.set(device, head);
  head.version += 1;
  head.transaction = transaction;
  return head;
}

function newHead(device: number, version: number, transaction: bigint): HeadRow {
  const none = {
    changesSeen: null,
    deletionsSeen: null,
    changesOffered: null,
    deletionsOffered: null,
    firstSeen: null,
  };
  return { device, version, ...none, offeredTime: 0, repeated: false, transaction };
}

function versionOf(head: HeadRow | undefined): object[] {
  return head ? [{ version: head.version }] : [];
}

/** Returns false for a statement that the database has carried out before. */
function takeTurn({ turns }: Tables, queue: unknown, number: unknown): boolean {
  if ((turns.get(queue as string) ?? 0) >= (number as number)) return false;
  turns.set(queue as string, number as number);
  return true;
}

/** Reads array literals: their escapes are those of JSON. */
function columns(literals: unknown[]): string[][] {
  return literals.map((literal) => {
    const elements = (literal as string).slice(1, -1);
    return elements.startsWith('"') ? (JSON.parse(`[${elements}]`) as string[]) : elements.split(',');
  });
}
