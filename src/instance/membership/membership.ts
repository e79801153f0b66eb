/**
 * Keeps this host among the hosts of its installation. The primary joins as soon as PostgreSQL has its tables, and
 * writes a heartbeat while it runs. A host whose settings differ from those of a live host that started earlier does
 * not join. Before the service begins, the mismatch ends the start. Afterwards `conflict` makes the host not ready
 * until the settings agree. A host with the id of a live host that started earlier does not join either: its data
 * directory is a copy, so the journals of both have the same writer ids. Such a host joins no more until its process
 * ends: else it would take the place of the other host when that one is restarted.
 */
import { messageOf, StartError } from '../../base/errors.ts';
import { limits } from '../../base/limits.ts';
import type { Log } from '../../base/log.ts';
import type { Metrics } from '../../base/metrics/metrics.ts';
import { type Scheduler, systemScheduler } from '../../base/scheduler.ts';
import type { Postgres } from '../../postgres/client.ts';
import { mismatchOf } from './equal-settings.ts';
import {
  beat,
  type FleetHost,
  type HostDescription,
  type HostStart,
  isLive,
  joinFleet,
  leaveFleet,
  readHosts,
  type Surplus,
} from './host-store.ts';

interface MembershipDeps {
  scheduler?: Scheduler;
  postgres: Postgres;
  host: HostDescription;
  /** Returns undefined while this host takes no MQTT connections. */
  mqttConnections: () => number | undefined;
  /** Called when an operator wants connections handed over to other hosts. */
  onSurplus: (surplus: Surplus) => void;
  log: Log;
  metrics: Metrics;
}

/** Why this host must not serve beside another one. `Membership` logs the conflict. */
export interface Conflict {
  /** `mismatch`: a setting differs. `copy`: the data directory is a copy of that of the other host. */
  kind: 'mismatch' | 'copy';
  sentence: string;
}

export class HostConflict extends StartError {}

/** A row that cannot be removed in this time ages out. */
const leaveMsMax = 2_000;
/** The time in which a live host has written a heartbeat. */
const heartbeatMsMax = limits.hostHeartbeatMs + 1_000;

export class Membership {
  readonly #deps: MembershipDeps;
  readonly #scheduler: Scheduler;
  /** The start of this process as it joined first: its epoch stays, and shows which host started earlier. */
  #start: HostStart | undefined;
  #isJoined = false;
  #hosts: FleetHost[] = [];
  #conflict: Conflict | undefined;
  #beating: Promise<void> = Promise.resolve();
  #stopTimer: (() => void) | undefined;
  #isBeating = false;
  #isObserved = false;
  #stopped = false;

  constructor(deps: MembershipDeps) {
    this.#deps = deps;
    this.#scheduler = deps.scheduler ?? systemScheduler;
  }

  /** Undefined while the hosts agree. */
  get conflict(): Conflict | undefined {
    return this.#conflict;
  }

  /** Names of the hosts that no longer send heartbeats. For information only: this host works without these hosts. */
  get silentHosts(): string[] {
    return this.#hosts.filter((host) => !isLive(host)).map(({ name }) => name);
  }

  /** The workers of this host and of the other live hosts. */
  get fleetWorkers(): number {
    const { id, workers } = this.#deps.host;
    const others = this.#hosts.filter((host) => host.id !== id && isLive(host));
    return others.reduce((sum, host) => sum + host.workers, workers);
  }

  /** This host and the other live hosts. */
  get fleetHosts(): number {
    return 1 + this.#hosts.filter((host) => host.id !== this.#deps.host.id && isLive(host)).length;
  }

  /**
   * True on the live host that started first: the home moves only when its host has left. Hosts that do not know each
   * other yet are all homes, which does no harm.
   */
  get isHomeHost(): boolean {
    if (this.#isCopy) return false;
    const { id } = this.#deps.host;
    const epoch = this.#isJoined ? this.#start!.epoch : Number.NEGATIVE_INFINITY;
    return this.#hosts.every((host) => host.id === id || !isLive(host) || host.epoch > epoch);
  }

  /**
   * Called when PostgreSQL has its tables. Throws a StartError when a setting differs from that of a live host, or a
   * live host has the same id.
   */
  async join(): Promise<void> {
    if (!this.#isJoined && !this.#isCopy && !(await this.#findsOther())) await this.#join();
    if (this.#conflict !== undefined) throw new HostConflict(this.#conflict.sentence);
    this.#stopTimer ??= this.#scheduler.every(limits.hostHeartbeatMs, () => this.#next());
  }

  /** Other hosts see at once that this one has left. */
  async stop(): Promise<void> {
    this.#stopped = true;
    this.#stopTimer?.();
    await this.#beating;
    if (!this.#isJoined) return;
    const { postgres, host, log } = this.#deps;
    const leaving = new AbortController();
    const late = this.#scheduler.sleep(leaveMsMax, leaving.signal);
    const left = leaveFleet(postgres, host.id, this.#start!.epoch).catch((error: unknown) =>
      log.info('host_not_removed', { reason: messageOf(error) }),
    );
    await Promise.race([left, late]);
    leaving.abort();
  }

  #next(): void {
    if (this.#isBeating || this.#stopped || this.#isCopy) return;
    this.#isBeating = true;
    this.#beating = this.#beat()
      // `StoreWatch` reports that PostgreSQL does not answer.
      .catch((error: unknown) => this.#deps.log.debug('heartbeat_failed', { reason: messageOf(error) }))
      .finally(() => {
        this.#isBeating = false;
      });
  }

  async #beat(): Promise<void> {
    const { postgres, host, mqttConnections, onSurplus } = this.#deps;
    const beaten = this.#isJoined ? await beat(postgres, host.id, this.#start!.epoch, mqttConnections()) : undefined;
    if (beaten === undefined) return (await this.#isOvertaken()) ? undefined : await this.#join();
    if (beaten !== 'nothing') onSurplus(beaten);
    await this.#compare();
  }

  /** True from the moment at which a live host with the id of this one was found. */
  get #isCopy(): boolean {
    return this.#conflict?.kind === 'copy';
  }

  /**
   * True when a live host has the id of this one. A row from another name or address may also be that of this host
   * before its last start: then no further heartbeat comes.
   */
  async #findsOther(): Promise<boolean> {
    const { host } = this.#deps;
    const before = await this.#ownRow();
    if (before === undefined || !isLive(before)) return false;
    if (before.name === host.name && before.address === host.address) return false;
    await this.#scheduler.sleep(heartbeatMsMax);
    const after = await this.#ownRow();
    if (after === undefined || after.epoch !== before.epoch || after.heartbeatMs === before.heartbeatMs) return false;
    this.#say(copyOf(after));
    return true;
  }

  /**
   * Called when the row of this start is no longer there. True when a live host that started earlier has the same id.
   * Such a host that started later gives way: it finds the row of this host.
   */
  async #isOvertaken(): Promise<boolean> {
    const row = await this.#ownRow();
    if (row === undefined || this.#start === undefined) return false;
    if (row.epoch >= this.#start.epoch || !isLive(row)) return false;
    this.#isJoined = false;
    this.#say(copyOf(row));
    return true;
  }

  async #ownRow(): Promise<FleetHost | undefined> {
    const { postgres, host } = this.#deps;
    return (await readHosts(postgres)).find(({ id }) => id === host.id);
  }

  async #join(): Promise<void> {
    const { postgres, host } = this.#deps;
    const joining = await joinFleet(postgres, host, this.#start);
    this.#isJoined = 'epoch' in joining;
    if ('epoch' in joining) this.#start = joining;
    this.#say('mismatch' in joining ? { kind: 'mismatch', sentence: joining.mismatch } : undefined);
    await this.#read();
  }

  /** After an outage of PostgreSQL every heartbeat was old: a host with other settings may have joined meanwhile. */
  async #compare(): Promise<void> {
    await this.#read();
    const { id, settings } = this.#deps.host;
    const earlier = this.#hosts.filter((other) => other.id !== id && other.epoch < this.#start!.epoch && isLive(other));
    const sentence = earlier.map((other) => mismatchOf(settings, other)).find((line) => line !== undefined);
    this.#say(sentence === undefined ? undefined : { kind: 'mismatch', sentence });
  }

  async #read(): Promise<void> {
    this.#hosts = await readHosts(this.#deps.postgres);
    if (this.#hosts.length > 1 && !this.#isObserved) this.#observe();
  }

  /** The page of an installation with one host has no lines for this. */
  #observe(): void {
    this.#isObserved = true;
    const { metrics } = this.#deps;
    const help = 'Hosts of this installation: live = with a heartbeat, silent = without one, not yet forgotten.';
    const live = () => this.#hosts.filter(isLive).length;
    metrics.observed('hosts', help, live, 'max', { state: 'live' });
    metrics.observed('hosts', help, () => this.#hosts.length - live(), 'max', { state: 'silent' });
  }

  #say(conflict: Conflict | undefined): void {
    if (conflict?.sentence === this.#conflict?.sentence) return;
    const { log } = this.#deps;
    if (conflict === undefined) log.info('host_settings_equal', {});
    else log.error(events[conflict.kind], { reason: conflict.sentence });
    this.#conflict = conflict;
  }
}

const events = { mismatch: 'host_settings_differ', copy: 'host_directory_copied' };

function copyOf({ name, address }: FleetHost): Conflict {
  const sentence =
    `The host ${name} (${address}), which runs, has the id of this host: DATA_DIR is a copy of its directory. ` +
    'Start this host on an empty DATA_DIR, or stop that host and start this one again.';
  return { kind: 'copy', sentence };
}
