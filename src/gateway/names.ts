/**
 * Maps the names of gateways' devices to rows of the store, and makes missing devices. Names that are requested in the
 * same turn, or while a statement runs, share the next statement. A statement is for all gateways of one tenant, and
 * tenants take turns. A found device is cached until it changes. A refused name is refused again for a few seconds
 * without a lookup.
 */
import { Batches } from '../base/batches.ts';
import type { Clock } from '../base/clock.ts';
import { Fault, unavailable } from '../base/errors.ts';
import { FairQueue } from '../base/fair-queue.ts';
import { FifoMap } from '../base/fifo-map.ts';
import { limits } from '../base/limits.ts';
import type { DeviceRow } from '../device/model/cached-device.ts';
import { actsFor, type CustomerScope, type ScopedGateway } from '../device/model/gateway-scope.ts';
import type { CredentialChange } from '../device/sql/credential-log-store.ts';
import type { ChildRequest } from '../onboarding/gateway-children.ts';
import { isAway } from '../postgres/postgres-error.ts';

/** `type`: name of a profile, '' = the default profile. */
export interface WantedChild {
  readonly name: string;
  readonly type: string;
}

interface NamedGateway extends ScopedGateway {
  readonly id: string;
  readonly tenantId: string;
}

export type FoundChildren = Map<string, DeviceRow | Fault>;
/** Returns one row or Fault for each requested name. */
type FindOrCreate = (tenantId: string, requests: ChildRequest[]) => Promise<FoundChildren>;

/** Finds devices while the store is unavailable: `KnownDevices`. A name that is absent may still have a device. */
interface NamesWithoutStore {
  readonly isStoreUnavailable: boolean;
  storeFailed(): void;
  /** Never rejects. */
  names(tenantId: string, names: string[]): Promise<Map<string, DeviceRow>>;
}

interface ChildNamesDeps {
  findOrCreate: FindOrCreate;
  clock: Clock;
  customerScope: CustomerScope;
  withoutStore?: NamesWithoutStore;
  /** Names that may wait. */
  queueMax?: number | undefined;
}

/** A name that waits for a statement. V8 promotes what waits, so a name is one object and has few others. */
class Pending implements ChildRequest {
  readonly key: string;
  readonly gateway: NamedGateway;
  readonly name: string;
  readonly type: string;
  readonly #scope: CustomerScope;
  calls: FindCall[];

  constructor(key: string, gateway: NamedGateway, { name, type }: WantedChild, scope: CustomerScope, call: FindCall) {
    this.key = key;
    this.gateway = gateway;
    this.name = name;
    this.type = type;
    this.#scope = scope;
    this.calls = [call];
  }

  get gatewayId(): string {
    return this.gateway.id;
  }

  actsFor(row: DeviceRow): boolean {
    return actsFor(this.gateway, row, this.#scope) === true;
  }
}

/** One call of `find`. */
class FindCall {
  /** Names without an outcome. Counts one too many at first, so that a name that is refused at once does not end it. */
  missing = 1;
  readonly #resolve: (found: FoundChildren) => void;
  /** Made with the first outcome: a map is larger than all other objects of a call. */
  #found: FoundChildren | undefined = undefined;

  constructor(resolve: (found: FoundChildren) => void) {
    this.#resolve = resolve;
  }

  add(name: string, outcome: DeviceRow | Fault): void {
    this.#found ??= new Map();
    this.#found.set(name, outcome);
  }

  /** Called once for each counted name. */
  settled(): void {
    this.missing -= 1;
    if (this.missing === 0) this.#resolve(this.#found ?? new Map());
  }
}

/** The device of a name, and the gateway through which it was last connected. */
interface Known {
  row: DeviceRow;
  gatewayId: string;
}

export class ChildNames {
  readonly #findOrCreate: FindOrCreate;
  readonly #clock: Clock;
  readonly #withoutStore: NamesWithoutStore | undefined;
  readonly #customerScope: CustomerScope;
  /** Found devices by the key of their name. */
  readonly #known = new FifoMap<string, Known>(limits.childNamesMax);
  /** Number of a device in `#known` → its key. */
  readonly #keys = new Map<number, string>();
  readonly #refused = new FifoMap<string, { fault: Fault; until: number }>(limits.refusedChildrenMax);
  readonly #pending = new Map<string, Pending>();
  /** Devices that changed while a statement ran: its answer about them may be outdated. */
  readonly #changed = new Set<number>();
  #allChanged = false;
  readonly #queue: FairQueue<Pending>;
  readonly #batches = new Batches(
    () => this.#queue.length > 0,
    () => this.#runBatch(),
  );

  constructor(deps: ChildNamesDeps) {
    const { findOrCreate, clock, customerScope, withoutStore, queueMax = limits.childNamesQueueMax } = deps;
    this.#findOrCreate = findOrCreate;
    this.#clock = clock;
    this.#customerScope = customerScope;
    this.#withoutStore = withoutStore;
    this.#queue = new FairQueue(queueMax);
  }

  get size(): number {
    return this.#known.size;
  }

  /** Returns a row or a Fault for each name. Never rejects. */
  find(gateway: NamedGateway, wanted: readonly WantedChild[]): Promise<FoundChildren> {
    return new Promise((resolve) => {
      const call = new FindCall(resolve);
      for (const child of wanted) {
        const { name } = child;
        const key = keyOf(gateway.tenantId, name);
        const known = this.#known.get(key);
        const refused = this.#refusal(key);
        if (known && this.#isFinal(gateway, known)) call.add(name, known.row);
        else if (refused) call.add(name, refused);
        else this.#join(key, gateway, child, call);
      }
      call.settled();
    });
  }

  /** Called when a device or its credentials changed. */
  changed(change: CredentialChange | 'all'): void {
    if (change === 'all') {
      this.#known.clear();
      this.#keys.clear();
      this.#refused.clear();
      this.#allChanged = true;
      return;
    }
    const { deviceNumber, deleted } = change;
    // A deleted device makes room for a device that was refused.
    if (deleted) this.#refused.clear();
    if (this.#batches.isRunning) this.#changed.add(deviceNumber);
    this.forget(deviceNumber);
  }

  /** Removes the device from the cache. */
  forget(deviceNumber: number): void {
    const key = this.#keys.get(deviceNumber);
    if (key === undefined) return;
    this.#keys.delete(deviceNumber);
    if (this.#known.get(key)?.row.number === deviceNumber) this.#known.delete(key);
  }

  /** True when the store need not record that the device is connected through this gateway. */
  #isFinal(gateway: NamedGateway, { row, gatewayId }: Known): boolean {
    return gatewayId === gateway.id || actsFor(gateway, row, this.#customerScope) !== true;
  }

  #refusal(key: string): Fault | undefined {
    const refused = this.#refused.get(key);
    if (refused === undefined) return undefined;
    if (refused.until > this.#clock.monotonic()) return refused.fault;
    this.#refused.delete(key);
    return undefined;
  }

  /** Adds the call to those that wait for the name. */
  #join(key: string, gateway: NamedGateway, child: WantedChild, call: FindCall): void {
    const waiting = this.#pending.get(key);
    if (waiting !== undefined) {
      // A call that has a name twice waits for the name once.
      if (waiting.calls.at(-1) === call) return;
      waiting.calls.push(call);
      call.missing += 1;
      return;
    }
    const pending = new Pending(key, gateway, child, this.#customerScope, call);
    call.missing += 1;
    this.#pending.set(key, pending);
    const refused = this.#queue.push({ tenant: gateway.tenantId, caller: gateway.id }, pending);
    if (refused) this.#settle(refused, tooMany);
    this.#batches.wake();
  }

  /** Looks up waiting names of one tenant. */
  async #runBatch(): Promise<void> {
    const first = this.#queue.shift()!;
    const { tenantId } = first.gateway;
    const batch = [first];
    while (batch.length < limits.childNamesBatchMax) {
      const next = this.#queue.shift((tenant) => tenant === tenantId);
      if (!next) break;
      batch.push(next);
    }
    this.#changed.clear();
    this.#allChanged = false;
    const found = await this.#lookUp(tenantId, batch);
    for (const pending of batch) this.#settle(pending, found.get(pending.name) ?? lookupFailed);
  }

  async #lookUp(tenantId: string, batch: Pending[]): Promise<FoundChildren> {
    if (this.#withoutStore?.isStoreUnavailable) return await this.#lookUpWithoutStore(tenantId, batch, lookupFailed);
    try {
      return await this.#findOrCreate(tenantId, batch);
    } catch (error) {
      if (!(error instanceof Fault)) throw error;
      if (error.status !== 503) return await this.#lookUpWithoutStore(tenantId, batch, lookupFailed);
      if (isAway(error)) this.#withoutStore?.storeFailed();
      return await this.#lookUpWithoutStore(tenantId, batch, error);
    }
  }

  async #lookUpWithoutStore(tenantId: string, batch: Pending[], fault: Fault): Promise<FoundChildren> {
    const names = batch.map(({ name }) => name);
    const rows = await this.#withoutStore?.names(tenantId, names);
    return new Map(names.map((name) => [name, rows?.get(name) ?? fault]));
  }

  #settle(pending: Pending, outcome: DeviceRow | Fault): void {
    const { key, gatewayId, name, calls } = pending;
    this.#pending.delete(key);
    // A former table of the map, which nothing uses, keeps the name in memory until V8 marks, but not also its calls.
    pending.calls = noCalls;
    if (!(outcome instanceof Fault)) {
      if (!this.#allChanged && !this.#changed.has(outcome.number)) this.#remember(key, outcome, gatewayId);
    } else if (outcome.status < 500) {
      this.#refused.set(key, { fault: outcome, until: this.#clock.monotonic() + limits.refusedChildMs });
    }
    for (const call of calls) {
      call.add(name, outcome);
      call.settled();
    }
  }

  #remember(key: string, row: DeviceRow, gatewayId: string): void {
    // A device that was renamed a moment ago may be cached under its earlier name, and its change is not received yet.
    this.forget(row.number);
    const replaced = this.#known.get(key);
    if (replaced) this.#keys.delete(replaced.row.number);
    const evicted = this.#known.set(key, { row, gatewayId });
    if (evicted) this.#keys.delete(evicted.row.number);
    this.#keys.set(row.number, key);
  }
}

const noCalls: FindCall[] = [];
const tooMany = unavailable('child_names_queue', 'Too many unknown devices at once; send again.');
const lookupFailed = unavailable('child_lookup', 'Devices cannot be looked up at the moment; send again.');

/** Joins in one string. A template would be a string of parts, which keeps them and two objects more. */
function keyOf(tenantId: string, name: string): string {
  return [tenantId, name].join('/');
}
