/**
 * Maps names of gateways' devices to rows of the store, and makes missing devices. Names requested in the same turn,
 * and while a statement runs, share the next statement, for all gateways of a tenant; tenants take turns. Results are
 * cached until they change. A name refused for lack of room is refused for a few seconds without a lookup.
 */
import { Batches } from '../base/batches.ts';
import type { Clock } from '../base/clock.ts';
import { Fault, unavailable } from '../base/errors.ts';
import { FairQueue } from '../base/fair-queue.ts';
import { FifoMap } from '../base/fifo-map.ts';
import { limits } from '../base/limits.ts';
import type { DeviceRow } from '../device/model/cached-device.ts';
import { actsFor, type CustomerScope, type ScopedGateway } from '../device/model/gateway-scope.ts';
import type { CredentialChange } from '../device/sql/store.ts';
import type { ChildRequest } from '../onboarding/gateway-children.ts';
import { isAway } from '../postgres/client.ts';

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

/** Answers while the store is unavailable: `KnownDevices`. Names without a device are left to the store. */
interface NamesAlone {
  readonly isAlone: boolean;
  storeFailed(): void;
  /** Never rejects. */
  names(tenantId: string, names: string[]): Promise<Map<string, DeviceRow>>;
}

interface Pending {
  key: string;
  tenantId: string;
  request: ChildRequest;
  asks: Ask[];
}

/** One call of `find`. */
interface Ask {
  found: FoundChildren;
  missing: number;
  done(): void;
}

/** The device of a name, and the gateway through which it was last connected. */
interface Known {
  row: DeviceRow;
  gatewayId: string;
}

export class ChildNames {
  readonly #findOrCreate: FindOrCreate;
  readonly #clock: Clock;
  readonly #alone: NamesAlone | undefined;
  readonly #customerScope: CustomerScope;
  readonly #known = new FifoMap<string, Known>(limits.childNamesMax);
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

  constructor(
    findOrCreate: FindOrCreate,
    clock: Clock,
    customerScope: CustomerScope,
    alone?: NamesAlone,
    queueMax: number = limits.childNamesQueueMax,
  ) {
    this.#queue = new FairQueue(queueMax);
    this.#alone = alone;
    this.#customerScope = customerScope;
    this.#findOrCreate = findOrCreate;
    this.#clock = clock;
  }

  get size(): number {
    return this.#known.size;
  }

  /** Never rejects. */
  find(gateway: NamedGateway, wanted: readonly WantedChild[]): Promise<FoundChildren> {
    const found: FoundChildren = new Map();
    return new Promise((resolve) => {
      // Counts one more than is missing, so that a name that is refused at once does not end the call.
      const ask: Ask = { found, missing: 1, done: () => resolve(found) };
      for (const { name, type } of wanted) {
        const key = keyOf(gateway.tenantId, name);
        const known = this.#known.get(key);
        const refused = this.#refusal(key);
        if (known && this.#isFinal(gateway, known)) found.set(name, known.row);
        else if (refused) found.set(name, refused);
        else this.#join(key, gateway, name, type, ask);
      }
      ask.missing -= 1;
      if (ask.missing === 0) resolve(found);
    });
  }

  changed(change: CredentialChange | 'all'): void {
    if (change === 'all') {
      this.#known.clear();
      this.#keys.clear();
      this.#refused.clear();
      this.#allChanged = true;
      return;
    }
    const { deviceNumber, deleted } = change;
    // A deleted device makes room.
    if (deleted) this.#refused.clear();
    if (this.#batches.isRunning) this.#changed.add(deviceNumber);
    this.forget(deviceNumber);
  }

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

  #join(key: string, gateway: NamedGateway, name: string, type: string, ask: Ask): void {
    let pending = this.#pending.get(key);
    const isNew = pending === undefined;
    if (!pending) {
      pending = {
        key,
        tenantId: gateway.tenantId,
        request: requestOf(gateway, name, type, this.#customerScope),
        asks: [],
      };
      this.#pending.set(key, pending);
    }
    // A call that has a name twice asks for it once.
    if (pending.asks.at(-1) !== ask) {
      pending.asks.push(ask);
      ask.missing += 1;
    }
    if (!isNew) return;
    const refused = this.#queue.push({ tenant: gateway.tenantId, caller: gateway.id }, pending);
    if (refused) this.#settle(refused, tooMany);
    this.#batches.wake();
  }

  /** Takes names of one tenant, because a statement is for one tenant. */
  async #runBatch(): Promise<void> {
    const first = this.#queue.shift()!;
    const { tenantId } = first;
    const batch = [first];
    while (batch.length < limits.childNamesBatchMax) {
      const next = this.#queue.shift(({ tenant }) => tenant === tenantId);
      if (!next) break;
      batch.push(next);
    }
    this.#changed.clear();
    this.#allChanged = false;
    const found = await this.#ask(tenantId, batch);
    for (const pending of batch) this.#settle(pending, found.get(pending.request.name) ?? lookupFailed);
  }

  async #ask(tenantId: string, batch: Pending[]): Promise<FoundChildren> {
    if (this.#alone?.isAlone) return await this.#askAlone(tenantId, batch, lookupFailed);
    try {
      return await this.#findOrCreate(
        tenantId,
        batch.map(({ request }) => request),
      );
    } catch (error) {
      const fault = error instanceof Fault && error.status === 503 ? error : undefined;
      if (!fault && !(error instanceof Fault)) throw error;
      if (fault && isAway(fault)) this.#alone?.storeFailed();
      return await this.#askAlone(tenantId, batch, fault ?? lookupFailed);
    }
  }

  async #askAlone(tenantId: string, batch: Pending[], fault: Fault): Promise<FoundChildren> {
    const names = batch.map(({ request }) => request.name);
    const rows = await this.#alone?.names(tenantId, names);
    return new Map(names.map((name) => [name, rows?.get(name) ?? fault]));
  }

  #settle({ key, request, asks }: Pending, outcome: DeviceRow | Fault): void {
    this.#pending.delete(key);
    if (!(outcome instanceof Fault)) {
      if (!this.#allChanged && !this.#changed.has(outcome.number)) this.#remember(key, outcome, request.gatewayId);
    } else if (outcome.status < 500) {
      this.#refused.set(key, { fault: outcome, until: this.#clock.monotonic() + limits.refusedChildMs });
    }
    for (const ask of asks) {
      ask.found.set(request.name, outcome);
      ask.missing -= 1;
      if (ask.missing === 0) ask.done();
    }
  }

  #remember(key: string, row: DeviceRow, gatewayId: string): void {
    const evicted = this.#known.set(key, { row, gatewayId });
    if (evicted) this.#keys.delete(evicted.row.number);
    this.#keys.set(row.number, key);
  }
}

const tooMany = unavailable('child_names_queue', 'Too many unknown devices at once; send again.');
const lookupFailed = unavailable('child_lookup', 'Devices cannot be looked up at the moment; send again.');

function requestOf(gateway: NamedGateway, name: string, type: string, scope: CustomerScope): ChildRequest {
  return { gatewayId: gateway.id, name, type, actsFor: (row) => actsFor(gateway, row, scope) === true };
}

function keyOf(tenantId: string, name: string): string {
  return `${tenantId}/${name}`;
}
