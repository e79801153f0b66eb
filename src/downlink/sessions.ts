/**
 * A device has at most one session, direct or through a gateway, over all workers and hosts: the newest one. Workers
 * announce their new sessions to each other, those of one turn of the loop in one message. Each session has a stamp,
 * which is higher than that of an earlier session of the device: no worker makes a stamp below one that it received. Of
 * two sessions the one with the lower stamp ends, and the other one is announced again, so exactly one stays. When a
 * device or its credentials change, the session of the device is compared with the store.
 */
import { Batches } from '../base/batches.ts';
import type { Clock } from '../base/clock.ts';
import { assert, messageOf } from '../base/errors.ts';
import { FifoMap } from '../base/fifo-map.ts';
import { limits } from '../base/limits.ts';
import type { Log } from '../base/log.ts';
import type { Metrics } from '../base/metrics/metrics.ts';
import type { Bus } from '../bus/bus.ts';
import { JsonChannel } from '../bus/json-channel.ts';
import { isCount, isListOf } from '../bus/messages.ts';
import type { LocalDevices } from '../device/local-devices.ts';
import type { CachedDevice, DeviceRow, StoredDevice } from '../device/model/cached-device.ts';
import type { CredentialChange } from '../device/sql/credential-log-store.ts';
import { isAway } from '../postgres/client.ts';

export type SessionEnd = 'taken_over' | 'credentials_changed' | 'device_deleted';

/** A connection, or a child of a gateway. */
export interface SessionOwner {
  /** Called when the session is over: at most once, never inside `open` and never after `end`. */
  sessionEnded(reason: SessionEnd): void;
  /** The address of a connection. */
  readonly remoteAddress?: string;
  /** The gateway of a child. */
  readonly through?: CachedDevice;
}

interface SessionsDeps {
  bus: Bus;
  devices: LocalDevices;
  /** Returns the devices that still exist. */
  lookUp: (numbers: number[]) => Promise<StoredDevice[]>;
  /** Called when a session began, also after a takeover. */
  onConnected: (device: CachedDevice) => void;
  /** Called when the session of a device ended and no other session took over. */
  onDisconnected: (device: CachedDevice) => void;
  clock: Clock;
  log: Log;
  metrics: Metrics;
}

interface OpenedSessions {
  opened: [device: number, stamp: number][];
}

function isOpenedSessions(value: object): value is OpenedSessions {
  return 'opened' in value && isListOf(value.opened, isOpened);
}

/** A stamp above the cap would leave no room for later ones. */
function isOpened(value: unknown): value is [number, number] {
  return isListOf(value, isCount) && value.length === 2 && value[1]! <= limits.sessionStampMax;
}

/** Stamps of one millisecond. More sessions in a millisecond let the stamps run ahead of the clock. */
const stampsPerMs = 1_000;

export class DeviceSession {
  readonly device: CachedDevice;
  readonly stamp: number;
  /** Version of the credentials that opened the session; undefined for a session through a gateway. */
  readonly credentialsVersion: number | undefined;
  readonly owner: SessionOwner;
  readonly #sessions: Sessions;
  #ended = false;

  constructor(
    sessions: Sessions,
    owner: SessionOwner,
    device: CachedDevice,
    stamp: number,
    credentialsVersion: number | undefined,
  ) {
    this.#sessions = sessions;
    this.owner = owner;
    this.device = device;
    this.stamp = stamp;
    this.credentialsVersion = credentialsVersion;
  }

  /** Epoch milliseconds. */
  get openedAt(): number {
    return Math.floor(this.stamp / stampsPerMs);
  }

  /** Called by the owner when it no longer uses the device, also after `sessionEnded`. Repeated calls do no harm. */
  end(): void {
    if (this.#ended) return;
    this.#ended = true;
    this.#sessions.left(this);
  }

  /** Called by `Sessions`. */
  notifyEnd(reason: SessionEnd): void {
    if (!this.#ended) this.owner.sessionEnded(reason);
  }
}

export class Sessions {
  readonly #deps: SessionsDeps;
  readonly #channel: JsonChannel<OpenedSessions>;
  readonly #here = new Map<number, DeviceSession>();
  /** Device → monotonic time of its last change. A login that started earlier is checked again. */
  readonly #changed = new FifoMap<number, number>(limits.sessionChangesMax);
  /** Monotonic time at which any device may have changed. */
  #allChangedMs = Number.NEGATIVE_INFINITY;
  /** Devices whose session may be based on outdated credentials. */
  readonly #unchecked = new Set<number>();
  readonly #checks = new Batches(
    () => this.#unchecked.size > 0 && !this.#stopped,
    () => this.#checkBatch(),
  );
  #endPause = () => {};
  #toAnnounce: DeviceSession[] = [];
  #lastStamp = 0;
  #onChecked: (device: CachedDevice, owner: SessionOwner) => void = () => {};
  #stopped = false;

  constructor(deps: SessionsDeps) {
    this.#deps = deps;
    this.#channel = new JsonChannel({
      bus: deps.bus,
      channel: 'sessions',
      isContent: isOpenedSessions,
      onMessage: ({ opened }, from) => this.#receive(opened, from),
    });
    deps.metrics.observed('device_sessions', 'Devices with a session on MQTT or through a gateway.', () => this.size);
    deps.bus.onReconnect(() => {
      // Announcements of other workers for the same devices may be lost.
      for (const session of this.#here.values()) this.#announce(session);
    });
  }

  get size(): number {
    return this.#here.size;
  }

  /** Called before the first session. */
  async start(): Promise<void> {
    await this.#channel.start();
  }

  async stop(): Promise<void> {
    this.#stopped = true;
    this.#channel.stop();
    this.#endPause();
    await this.#checks.idle();
  }

  /**
   * Registers a handler that is called for each session whose device was read again, because it changed or may have
   * changed.
   */
  onChecked(handler: (device: CachedDevice, owner: SessionOwner) => void): void {
    this.#onChecked = handler;
  }

  /** The device's session on this worker. */
  get(device: number): DeviceSession | undefined {
    return this.#here.get(device);
  }

  /** Ends the earlier session of the device on any worker. The caller ends the new session. */
  open(row: DeviceRow, owner: SessionOwner, credentialsVersion?: number): DeviceSession {
    const { clock, devices, onConnected } = this.#deps;
    const device = devices.adopt(row);
    this.#lastStamp = Math.max(clock.now() * stampsPerMs, this.#lastStamp + 1);
    const session = new DeviceSession(this, owner, device, this.#lastStamp, credentialsVersion);
    const former = this.#here.get(row.number);
    this.#here.set(row.number, session);
    former?.notifyEnd('taken_over');
    onConnected(device);
    this.#announce(session);
    if (this.#changedLately(row.number)) this.#checkSoon(row.number);
    return session;
  }

  /** Called when a device or its credentials changed. Every later read of the store sees the change. */
  changed(change: CredentialChange | 'all'): void {
    const now = this.#deps.clock.monotonic();
    if (change === 'all') {
      this.#allChangedMs = now;
      for (const number of this.#here.keys()) this.#checkSoon(number);
      return;
    }
    const { deviceNumber: number } = change;
    const session = this.#here.get(number);
    if (session && change.deleted) {
      this.#over(session, 'device_deleted');
    } else {
      // Delete first: setting again moves the device to the end of the eviction order.
      this.#changed.delete(number);
      this.#changed.set(number, now);
      if (session) this.#checkSoon(number);
    }
  }

  /** Called by `DeviceSession.end`. */
  left(session: DeviceSession): void {
    const { device } = session;
    if (this.#here.get(device.number) === session) {
      this.#here.delete(device.number);
      this.#deps.onDisconnected(device);
    }
    this.#deps.devices.release(device);
  }

  #over(session: DeviceSession, reason: SessionEnd): void {
    this.#here.delete(session.device.number);
    if (reason !== 'taken_over') this.#deps.onDisconnected(session.device);
    session.notifyEnd(reason);
  }

  #announce(session: DeviceSession): void {
    if (this.#toAnnounce.push(session) === 1) setImmediate(() => this.#announceAll());
  }

  #announceAll(): void {
    const sessions = this.#toAnnounce;
    this.#toAnnounce = [];
    for (let i = 0; i < sessions.length; i += limits.openedPerMessageMax) {
      const opened = sessions
        .slice(i, i + limits.openedPerMessageMax)
        .filter((session) => this.#here.get(session.device.number) === session)
        .map(({ device, stamp }): [number, number] => [device.number, stamp]);
      if (opened.length > 0) this.#channel.publish({ opened });
    }
  }

  #receive(opened: OpenedSessions['opened'], from: string): void {
    for (const [number, stamp] of opened) {
      this.#lastStamp = Math.max(this.#lastStamp, stamp);
      const session = this.#here.get(number);
      if (!session) continue;
      const isNewer = stamp > session.stamp || (stamp === session.stamp && from > this.#channel.process);
      if (isNewer) this.#over(session, 'taken_over');
      else this.#announce(session);
    }
  }

  #changedLately(number: number): boolean {
    const since = this.#deps.clock.monotonic() - limits.loginMsMax;
    return (this.#changed.get(number) ?? Number.NEGATIVE_INFINITY) >= since || this.#allChangedMs >= since;
  }

  #checkSoon(number: number): void {
    this.#unchecked.add(number);
    // A read that is running may miss the change, so this device joins the next read.
    this.#checks.wake();
  }

  async #checkBatch(): Promise<void> {
    const numbers = [...this.#unchecked].slice(0, limits.sessionChecksBatchMax);
    for (const number of numbers) this.#unchecked.delete(number);
    try {
      this.#compare(numbers, await this.#deps.lookUp(numbers));
    } catch (error) {
      // Sessions stay open while the database is unavailable.
      if (!isAway(error)) {
        this.#deps.log.warn('sessions_unchecked', { reason: messageOf(error), sessions: this.#unchecked.size });
      }
      for (const number of numbers) this.#unchecked.add(number);
      await this.#pause();
    }
  }

  #pause(): Promise<void> {
    return new Promise((resolve) => {
      const timer = setTimeout(resolve, limits.credentialPollMs);
      this.#endPause = () => {
        clearTimeout(timer);
        resolve();
      };
    });
  }

  #compare(numbers: number[], rows: StoredDevice[]): void {
    const stored = new Map(rows.map((row) => [row.number, row]));
    for (const number of numbers) {
      const session = this.#here.get(number);
      if (!session) continue;
      const row = stored.get(number);
      if (!row) {
        this.#over(session, 'device_deleted');
      } else {
        assert(row.id === session.device.id, 'a number belongs to one device for ever');
        this.#deps.devices.refresh(row);
        const { credentialsVersion } = session;
        // A higher version than the stored one belongs to a later read than this answer.
        if (credentialsVersion !== undefined && row.credentialsVersion > credentialsVersion) {
          this.#over(session, 'credentials_changed');
        } else {
          this.#onChecked(session.device, session.owner);
        }
      }
    }
  }
}
