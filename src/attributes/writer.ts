/**
 * Writes attributes to PostgreSQL. Writes that arrive while a statement runs go with the next one: many devices in one
 * upsert, acknowledged after the commit. Each queue (`write-queue.ts`) runs one statement at a time, and a scope of a
 * device belongs to one queue, so its writes take effect in the order of the calls. A statement that may have been
 * committed when the connection broke is repeated and takes effect once: the database counts the statements of each
 * queue. A write whose content the database refuses is isolated and fails alone.
 */
import { type BudgetOwner, ByteBudget } from '../base/byte-budget.ts';
import type { Clock } from '../base/clock.ts';
import { assert, badRequest, Fault, unavailable } from '../base/errors.ts';
import { limits } from '../base/limits.ts';
import type { Counter, Metrics } from '../base/metrics/metrics.ts';
import { type Sleep, systemScheduler } from '../base/scheduler.ts';
import type { Queries } from '../postgres/client.ts';
import { isAway, isLostRace, sqlStateOf } from '../postgres/postgres-error.ts';
import type { TypedValue } from '../value/typed.ts';
import type { AttributeWrite } from './attribute-row.ts';
import { ownerAndScope, sharedScope } from './scope.ts';
import { StoredBytes, storedBytes } from './stored-bytes.ts';
import { type Remove, type Save, WriteQueue } from './write-queue.ts';
import {
  deleteAttributes,
  deleteShared,
  pruneTurns,
  readUnreplaced,
  type Turn,
  upsertAttributes,
  upsertShared,
} from './write-store.ts';

/** A committed version of a device's shared attributes: the values that were set, or the keys that were deleted. */
export interface SharedChange {
  device: number;
  version: number;
  changed: Map<string, TypedValue> | undefined;
  deleted: string[] | undefined;
}

interface AttributeWriterDeps {
  postgres: Queries;
  clock: Clock;
  sleep?: Sleep;
  metrics: Metrics;
  /** Bytes of one scope of a device; the default is the cap in `limits`. */
  storedBytesMax?: number;
  /** Called after the commit, before the writer's call resolves. */
  onShared: (change: SharedChange) => void;
}

const tooManyWait = unavailable('attributes_waiting', 'Too many attributes wait to be stored; try again.');
const deviceWaits = new Fault(
  'attributes_waiting_share',
  'The device, or its tenant, sends attributes faster than they are stored: send the next ones when the earlier ones are acknowledged.',
  1,
);

const valueBytesMin = Math.floor(limits.attributeBytesWaitingMax / limits.attributeRowsWaitingMax);

/** A small value counts as its part of the cap on values, so that few devices cannot use up that cap. */
function waitingBytes(bytes: number, rows: number): number {
  return Math.max(bytes, rows * valueBytesMin);
}

/**
 * Who writes. The server writes a bounded number of values for a tenant at once: these writes take the turns of the
 * tenant, and are not refused because the tenant's devices have used up the tenant's share, or because the device has
 * used up its stored bytes.
 */
export type WrittenBy = 'caller' | 'server';

function ownersOf(device: number, tenantId: string | undefined, by: WrittenBy): BudgetOwner[] {
  const own = { name: String(device), bytesMax: limits.attributeBytesWaitingPerDeviceMax };
  if (tenantId === undefined || by === 'server') return [own];
  return [own, { name: tenantId, bytesMax: limits.attributeBytesWaitingPerTenantMax }];
}

export class AttributeWriter {
  readonly #deps: AttributeWriterDeps;
  readonly #postgres: Queries;
  readonly #stored: StoredBytes;
  readonly #sharedQueue: WriteQueue;
  readonly #queues: WriteQueue[];
  readonly #written: Counter;
  readonly #retried: Counter;
  #rowsWaiting = 0;
  readonly #bytesWaiting = new ByteBudget(limits.attributeBytesWaitingMax);

  constructor(deps: AttributeWriterDeps) {
    this.#deps = deps;
    const { postgres, metrics } = deps;
    const timeoutMs = limits.attributeStatementMsMax;
    this.#stored = new StoredBytes(deps.clock, undefined, deps.storedBytesMax);
    this.#postgres = { query: (text, values) => postgres.query(text, values, { timeoutMs }) };
    const queue = () =>
      new WriteQueue({
        saveAll: (saves, queue) => this.#saveAll(saves, queue),
        remove: (remove, queue) => this.#removeOne(remove, queue),
      });
    this.#sharedQueue = queue();
    this.#queues = Array.from({ length: limits.attributeQueues }, queue);
    this.#written = metrics.counter('attributes_written_total', 'Attribute values committed.');
    this.#retried = metrics.counter('attributes_retried_total', 'Attribute statements that were run again.');
    metrics.observed('attributes_waiting', 'Attribute values that wait for their commit.', () => this.#rowsWaiting);
  }

  /** `tenantId`: whose turns and whose share of what waits are used; a caller may have no tenant. */
  save(
    device: number,
    scope: number,
    entries: Map<string, TypedValue>,
    tenantId?: string,
    by: WrittenBy = 'caller',
  ): Promise<void> {
    const stored = storedBytes(entries);
    const bytes = waitingBytes(stored, entries.size);
    const owners = ownersOf(device, tenantId, by);
    const refusal = this.#take(entries.size, bytes, owners);
    if (refusal) return Promise.reject(refusal);
    const admitted =
      by === 'server' ? this.#stored.waiting(device, scope) : this.#stored.admit(this.#postgres, device, scope, stored);
    const push = () => this.#push({ device, scope, tenantId, entries, bytes, owners });
    if (!admitted) return push();
    return admitted.then(push, (error: unknown) => {
      this.#release(entries.size, bytes, owners);
      throw error;
    });
  }

  /** Takes room for what waits, or returns the refusal. */
  #take(rows: number, bytes: number, owners: readonly BudgetOwner[]): Fault | undefined {
    if (this.#bytesWaiting.lacking(bytes, owners)) return deviceWaits;
    const isFull = this.#rowsWaiting + rows > limits.attributeRowsWaitingMax;
    if (isFull || !this.#bytesWaiting.take(bytes, owners)) return tooManyWait;
    this.#rowsWaiting += rows;
    return undefined;
  }

  #release(rows: number, bytes: number, owners: readonly BudgetOwner[]): void {
    this.#rowsWaiting -= rows;
    this.#bytesWaiting.release(bytes, owners);
  }

  #push(save: Omit<Save, 'ts' | 'resolve' | 'reject'>): Promise<void> {
    return new Promise((resolve, reject) => {
      const ts = this.#deps.clock.now();
      this.#queueOf(save.device, save.scope).push({ ...save, ts, resolve, reject });
    });
  }

  remove(
    device: number,
    scope: number,
    keys: string[],
    tenantId?: string,
    by: WrittenBy = 'caller',
  ): Promise<string[]> {
    const keyBytes = keys.reduce((sum, key) => sum + Buffer.byteLength(key), 0);
    // A removal of any number of keys fits into the share of its device.
    const bytes = waitingBytes(keyBytes, Math.min(keys.length, limits.attributeKeysPerMessageMax));
    const owners = ownersOf(device, tenantId, by);
    const refusal = this.#take(keys.length, bytes, owners);
    if (refusal) return Promise.reject(refusal);
    this.#stored.removed(device, scope);
    const removal = () =>
      new Promise<string[]>((resolve, reject) => {
        this.#queueOf(device, scope).push({ device, scope, tenantId, keys, bytes, owners, resolve, reject });
      });
    // The removal follows the writes that wait for a read of the stored bytes.
    return this.#stored.waiting(device, scope)?.then(removal) ?? removal();
  }

  /** Resolves when no write waits any more. */
  async idle(): Promise<void> {
    await Promise.all([this.#sharedQueue, ...this.#queues].map((queue) => queue.idle()));
  }

  #queueOf(device: number, scope: number): WriteQueue {
    return scope === sharedScope ? this.#sharedQueue : this.#queues[device % this.#queues.length]!;
  }

  /** Never throws: each save gets its own outcome. */
  async #saveAll(saves: Save[], queue: WriteQueue): Promise<void> {
    await this.#saveSome(saves, queue);
    for (const { entries, bytes, owners } of saves) this.#release(entries.size, bytes, owners);
  }

  async #saveSome(saves: Save[], queue: WriteQueue): Promise<void> {
    const rows = lastWrites(saves);
    const isShared = saves[0]!.scope === sharedScope;
    let versions: Map<number, number> | undefined;
    try {
      versions = await this.#run(queue, async (turn) => {
        if (isShared) return await upsertShared(this.#postgres, rows, turn);
        await upsertAttributes(this.#postgres, rows, turn);
        return undefined;
      });
    } catch (error) {
      if (!isRefusedForContent(error) || saves.length === 1) {
        for (const save of saves) save.reject(contentFault(error));
        return;
      }
      const middle = saves.length >> 1;
      await this.#saveSome(saves.slice(0, middle), queue);
      await this.#saveSome(saves.slice(middle), queue);
      return;
    }
    this.#written.add(rows.length);
    if (versions?.size === 0) await this.#announceUnreplaced(rows);
    else if (versions) this.#announce(rows, versions);
    for (const save of saves) save.resolve();
  }

  /**
   * Called when the first attempt was committed and its answer was lost. A row that a later write replaced is announced
   * by that write.
   */
  async #announceUnreplaced(rows: AttributeWrite[]): Promise<void> {
    let unreplaced: { place: number; version: number }[];
    try {
      unreplaced = await readUnreplaced(this.#postgres, rows);
    } catch (error) {
      // The rows are stored. A follower that is not notified now reads them after its next poll of the versions.
      if (!isAway(error)) throw error;
      return;
    }
    const versions = new Map(unreplaced.map(({ place, version }) => [rows[place]!.device, version]));
    if (versions.size > 0)
      this.#announce(
        unreplaced.map(({ place }) => rows[place]!),
        versions,
      );
  }

  #announce(rows: AttributeWrite[], versions: Map<number, number>): void {
    const changes = new Map<number, Map<string, TypedValue>>();
    for (const { device, key, value } of rows) {
      const changed = changes.get(device);
      if (changed) changed.set(key, value);
      else changes.set(device, new Map([[key, value]]));
    }
    for (const [device, changed] of changes) {
      const version = versions.get(device);
      assert(version !== undefined, 'each device of a batch has a version');
      this.#deps.onShared({ device, version, changed, deleted: undefined });
    }
  }

  async #removeOne({ device, scope, keys, bytes, owners, resolve, reject }: Remove, queue: WriteQueue): Promise<void> {
    try {
      const removed = new Set<string>();
      const version = await this.#run(queue, async (turn) => {
        if (scope !== sharedScope) {
          for (const key of await deleteAttributes(this.#postgres, device, scope, keys, turn)) removed.add(key);
          return 0;
        }
        const outcome = await deleteShared(this.#postgres, device, keys, this.#deps.clock.now(), turn);
        for (const key of outcome.removed) removed.add(key);
        return outcome.version;
      });
      const deleted = keys.filter((key) => removed.delete(key));
      if (scope === sharedScope && deleted.length > 0) {
        this.#deps.onShared({ device, version, changed: undefined, deleted });
      }
      // Repeated, because a sum that was read while the delete ran is too high.
      this.#stored.removed(device, scope);
      resolve(deleted);
    } catch (error) {
      reject(contentFault(error));
    } finally {
      this.#release(keys.length, bytes, owners);
    }
  }

  /** Deletes what queues of earlier workers left in the database. */
  #prune(): void {
    pruneTurns(this.#postgres, limits.attributeTurnKeptMs).catch((error: unknown) => {
      // Two hosts that delete at once may deadlock; a later prune deletes the rows.
      if (!(isAway(error) || isLostRace(error))) throw error;
    });
  }

  /**
   * Repeats the statement, as the same turn of its queue, while the database is unavailable or the statement lost a
   * race.
   */
  async #run<Result>(queue: WriteQueue, statement: (turn: Turn) => Promise<Result>): Promise<Result> {
    const { clock, sleep = systemScheduler.sleep } = this.#deps;
    const turn = queue.nextTurn();
    const deadline = clock.monotonic() + limits.attributeRetryMsMax;
    for (let attempt = 1; ; attempt += 1) {
      try {
        const result = await statement(turn);
        if (turn.number % limits.attributeTurnsPerPrune === 1) this.#prune();
        return result;
      } catch (error) {
        const lostRace = isLostRace(error);
        if (!(lostRace || isAway(error))) throw error;
        if (clock.monotonic() > deadline) throw lostRace ? contended() : error;
        this.#retried.add(1);
        if (!lostRace) await sleep(Math.min(50 * attempt, 500));
      }
    }
  }
}

/** Keeps one row for each key, the last one: a statement must not touch a row twice. */
function lastWrites(saves: Save[]): AttributeWrite[] {
  const rows: AttributeWrite[] = [];
  const places = new Map<number, Map<string, number>>();
  for (const { device, scope, entries, ts } of saves) {
    const owner = ownerAndScope(device, scope);
    const known = places.get(owner) ?? new Map<string, number>();
    places.set(owner, known);
    for (const [key, value] of entries) {
      const row = { device, scope, key, value, ts };
      const place = known.get(key);
      if (place !== undefined) {
        rows[place] = row;
        continue;
      }
      known.set(key, rows.length);
      rows.push(row);
    }
  }
  return rows;
}

function contended(): Fault {
  return unavailable('attributes_contended', 'The attributes were written by too many at once; try again.');
}

/** True for SQLSTATE classes 22 (data), 23 (constraints) and 54 (limits of the database). */
function isRefusedForContent(error: unknown): boolean {
  return /^(22|23|54)/.test(sqlStateOf(error) ?? '');
}

function contentFault(error: unknown): unknown {
  if (error instanceof Fault || !isRefusedForContent(error)) return error;
  const fault = badRequest(
    'attribute_refused',
    'The attributes cannot be stored: their device is gone or a value does not fit.',
  );
  fault.cause = error;
  return fault;
}
