/**
 * Records the outcomes of devices with trouble, in the memory of this worker. Called where a refusal is answered or a
 * connection ends, so an accepted message costs nothing here. A flood of refusals costs little: a device gets a few
 * entries a second, the worker a few hundred new devices a second, and everything above is only counted. The records
 * begin with the process; `diagnostics.ts` collects those of all workers.
 */
import type { Clock } from '../base/clock.ts';
import { limits } from '../base/limits.ts';
import type { Metrics } from '../base/metrics/metrics.ts';
import type { CachedDevice } from '../device/model/cached-device.ts';
import { excerptOf } from './excerpt.ts';
import type { FirstRecords } from './first-records.ts';
import type { OddTime } from './odd-time.ts';
import type { OddTimesOfDevices } from './odd-times.ts';
import { addOutcome, type Door, type Event, type Outcome } from './outcome.ts';
import { RecordTable } from './record-table.ts';
import { TenantRefusals } from './tenant-refusals.ts';

type KnownDevice = Pick<CachedDevice, 'number' | 'tenantId'>;

/** Reason and sentence of a refusal: a `Fault`, or the reason for which a connection ended. */
interface Cause {
  readonly reason: string;
  readonly message: string;
  /** The time for which a message was refused. */
  readonly oddTime?: OddTime | undefined;
}

interface TroublesDeps {
  clock: Clock;
  metrics: Metrics;
  first: FirstRecords;
  oddTimes: OddTimesOfDevices;
}

export interface Place {
  door: Door;
  /** Called only for an outcome that is recorded; '' = unknown. */
  address: () => string;
}

/** A refusal, for the list of a tenant. */
export interface RefusedDevice {
  number: number;
  /** Refusals since the device has a record. */
  count: number;
  last: Outcome;
}

interface Entries {
  readonly number: number;
  readonly tenantId: string;
  readonly outcomes: Outcome[];
  count: number;
  /** The second of the last entry, and the entries within it. */
  second: number;
  inSecond: number;
}

const noCause: Cause = { reason: '', message: '' };

/** Reasons that need no attention: such an end is recorded only for a device that has a record. */
const ordinary: Record<string, true> = {
  client_disconnect: true,
  server_shutdown: true,
  handed_over: true,
  provisioned: true,
};

export class Troubles {
  /** Milliseconds since which this worker records. */
  readonly since: number;
  readonly #clock: Clock;
  readonly #refusals = new RecordTable<Entries>(limits.diagnosedDevicesMax);
  readonly #connections = new RecordTable<Entries>(limits.diagnosedDevicesMax);
  readonly #first: FirstRecords;
  readonly #oddTimes: OddTimesOfDevices;
  readonly #byTenant: TenantRefusals;

  constructor({ clock, metrics, first, oddTimes }: TroublesDeps) {
    this.#clock = clock;
    this.#first = first;
    this.#oddTimes = oddTimes;
    this.#byTenant = new TenantRefusals(metrics);
    this.since = clock.now();
    const help = 'Devices of which a worker records refusals or connections.';
    const tables = { refusals: this.#refusals, connections: this.#connections };
    for (const [kind, table] of Object.entries(tables)) {
      metrics.observed('diagnostics_devices', help, () => table.size, 'sum', { kind });
    }
  }

  /** Records a message that was refused; `bytes`: the message, read before this call returns. */
  refused(device: KnownDevice, cause: Cause, place: Place, bytes?: Uint8Array): void {
    this.#byTenant.add(device.tenantId);
    const { oddTime } = cause;
    if (oddTime !== undefined) this.#oddTimes.add(device, oddTime.kind, oddTime.ts);
    this.#record(this.#refusals, device, 'refused', cause, place, bytes);
  }

  /** Notes a new connection of a device that has a record. */
  connected(device: KnownDevice, place: Place): void {
    if (this.#connections.get(device.number) === undefined) return;
    this.#record(this.#connections, device, 'connected', noCause, place);
  }

  /** Records the end of a connection; an ordinary end only for a device that has a record. */
  disconnected(device: KnownDevice, cause: Cause, place: Place): void {
    if (cause.reason in ordinary && this.#connections.get(device.number) === undefined) return;
    this.#record(this.#connections, device, 'disconnected', cause, place);
  }

  /** Records a CONNECT of a known device that was refused. */
  connectRefused(device: KnownDevice, cause: Cause, place: Place): void {
    this.#record(this.#connections, device, 'connect_refused', cause, place);
  }

  /** Called when a device was deleted. */
  forget(number: number): void {
    this.#refusals.delete(number);
    this.#connections.delete(number);
    this.#oddTimes.forget(number);
  }

  refusalsOf(number: number): { count: number; outcomes: Outcome[] } {
    const { count = 0, outcomes = [] } = this.#refusals.get(number) ?? {};
    return { count, outcomes };
  }

  connectionsOf(number: number): Outcome[] {
    return this.#connections.get(number)?.outcomes ?? [];
  }

  /** The devices of a tenant with refusals, those that `order` puts first, at most `refusalsListedMax`. */
  refusedOf(tenantId: string, order: 'newest' | 'most'): RefusedDevice[] {
    const all = this.#refusals.ofTenant(tenantId).reverse();
    if (order === 'most') all.sort((a, b) => b.count - a.count);
    return all.slice(0, limits.refusalsListedMax).map(({ number, count, outcomes }) => ({
      number,
      count,
      last: outcomes.at(-1)!,
    }));
  }

  #record(
    table: RecordTable<Entries>,
    device: KnownDevice,
    event: Event,
    { reason, message }: Cause,
    { door, address }: Place,
    bytes?: Uint8Array,
  ): void {
    const entries = table.get(device.number) ?? this.#newEntries(device);
    if (entries === undefined) return;
    entries.count += 1;
    const now = this.#clock.now();
    if (!isSampled(entries, Math.floor(now / 1000))) return;
    addOutcome(entries.outcomes, { event, door, reason, message, address: address(), excerpt: excerptOf(bytes) }, now);
    table.add(entries);
  }

  /** Returns undefined when too many devices got a first record this second: the outcome is only counted. */
  #newEntries({ number, tenantId }: KnownDevice): Entries | undefined {
    if (!this.#first.take(tenantId)) return undefined;
    return { number, tenantId, outcomes: [], count: 0, second: 0, inSecond: 0 };
  }
}

/** False for the outcomes of one device and second above the cap. */
function isSampled(entries: Entries, second: number): boolean {
  if (second !== entries.second) {
    entries.second = second;
    entries.inSecond = 0;
  }
  entries.inSecond += 1;
  return entries.inSecond <= limits.diagnosedPerSecondMax;
}
