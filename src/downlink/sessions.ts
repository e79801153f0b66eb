/**
 * A device has at most one session, direct or through a gateway, over all workers and hosts: the newest one. A worker
 * announces a session on the channel of its device, to which it subscribes first. The bus gives all subscribers the
 * announcements of a channel in one order, also to their senders:
 *
 *     a session whose own last announcement has not come back ignores those of others: theirs is followed by its own
 *     a session whose own one has come back ends at the first announcement of another session, which is newer, unless
 *     that announcement has waited for longer than the session is open
 *     a repeated announcement has no place in the order: the session with the lower stamp ends, the one with the higher
 *     stamp is announced again
 *
 * So exactly one session stays, with any clocks. It is the newest one, unless two were opened within the time of a
 * message. Workers of one host receive all announcements, and their stamps are of one clock: there stamps decide. A
 * worker makes no stamp below one that it received. When a device or its credentials change, the session of the device
 * is compared with the store.
 */
import { Batches } from '../base/batches.ts';
import type { Clock } from '../base/clock.ts';
import { messageOf } from '../base/errors.ts';
import { FifoMap } from '../base/fifo-map.ts';
import { limits } from '../base/limits.ts';
import type { Log } from '../base/log.ts';
import type { Metrics } from '../base/metrics/metrics.ts';
import { type Scheduler, systemScheduler } from '../base/scheduler.ts';
import type { Bus } from '../bus/bus.ts';
import { isCount, isListOf, UnreadMessage } from '../bus/messages.ts';
import type { LocalDevices } from '../device/local-devices.ts';
import type { CachedDevice, DeviceRow, StoredDevice } from '../device/model/cached-device.ts';
import type { CredentialChange } from '../device/sql/credential-log-store.ts';
import { isAway } from '../postgres/postgres-error.ts';
import { Announcements, repeatedPerSecond } from './announcements.ts';
import type { DeviceChannels } from './device-channels.ts';

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
  channels: DeviceChannels;
  devices: LocalDevices;
  /** Returns the devices that still exist. */
  lookUp: (numbers: number[]) => Promise<StoredDevice[]>;
  /** Called when a session began, also after a takeover. */
  onConnected: (device: CachedDevice) => void;
  /** Called when the session of a device ended and no other session took over. */
  onDisconnected: (device: CachedDevice) => void;
  clock: Clock;
  scheduler?: Scheduler;
  log: Log;
  metrics: Metrics;
}

/**
 * `isFirst`: 1 in the first announcement of the session, 0 in a repeated one. `waitedMs`: how long the session was
 * open before it was announced.
 */
type Entry = [device: number, stamp: number, isFirst: number, waitedMs: number];

interface SessionMessage {
  kind: 'session';
  from: string;
  /** Counts the messages of a worker. */
  number: number;
  sessions: Entry[];
}

function isSessionMessage(value: object): value is SessionMessage {
  return 'number' in value && isCount(value.number) && 'sessions' in value && isListOf(value.sessions, isEntry);
}

/** A stamp above the cap would leave no room for later ones. */
function isEntry(value: unknown): value is Entry {
  return isListOf(value, isCount) && value.length === 4 && value[1]! <= limits.sessionStampMax;
}

/** A message of announcements. */
interface Awaited {
  readonly sessions: readonly DeviceSession[];
  /** How many of these sessions are open and were not announced again. */
  waiting: number;
  /** Monotonic time. */
  readonly sentMs: number;
}

/** Stamps of one millisecond. More sessions in a millisecond let the stamps run ahead of the clock. */
const stampsPerMs = 1_000;

export class DeviceSession {
  readonly device: CachedDevice;
  readonly stamp: number;
  /** Version of the credentials that opened the session; undefined for a session through a gateway. */
  readonly credentialsVersion: number | undefined;
  readonly owner: SessionOwner;
  /** Monotonic time. */
  readonly openedMs: number;
  /** The number of the message that last announced the session; 0 before the first one. */
  announcement = 0;
  /** True when that message has come back. */
  isAnnounced = false;
  readonly #sessions: Sessions;
  #ended = false;

  constructor(
    sessions: Sessions,
    owner: SessionOwner,
    device: CachedDevice,
    stamp: number,
    openedMs: number,
    credentialsVersion: number | undefined,
  ) {
    this.#sessions = sessions;
    this.owner = owner;
    this.device = device;
    this.stamp = stamp;
    this.openedMs = openedMs;
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
  readonly #scheduler: Scheduler;
  readonly #here = new Map<number, DeviceSession>();
  /** Device → monotonic time of its last change. A login that started earlier is checked again. */
  readonly #changed = new FifoMap<number, number>(limits.sessionChangesMax);
  /** Monotonic time up to which any device may have changed. */
  #allChangedMs = Number.NEGATIVE_INFINITY;
  /** Devices whose session may be based on outdated credentials. */
  readonly #unchecked = new Set<number>();
  readonly #checks = new Batches(
    () => this.#unchecked.size > 0 && !this.#stopped,
    () => this.#checkBatch(),
  );
  #endPause = () => {};
  readonly #announcements: Announcements<DeviceSession>;
  /** Messages that have not come back, by number: the oldest one first. Many sessions share a message of one host. */
  readonly #awaited = new Map<number, Awaited>();
  /** Stops the next check for announcements that have not come back. */
  #stopEchoCheck: (() => void) | undefined;
  #lastMessage = 0;
  #lastStamp = 0;
  #onChecked: (device: CachedDevice, owner: SessionOwner) => void = () => {};
  #stopped = false;

  constructor(deps: SessionsDeps) {
    this.#deps = deps;
    const { bus, clock, scheduler = systemScheduler } = deps;
    this.#scheduler = scheduler;
    const publish = (sessions: DeviceSession[]) => this.#publish(sessions);
    this.#announcements = new Announcements({ bus, publish, clock, scheduler });
    deps.channels.onMessage('session', (message) => this.#receive(message));
    deps.metrics.observed('device_sessions', 'Devices with a session on MQTT or through a gateway.', () => this.size);
    deps.bus.onReconnect(() => this.#restored());
  }

  get size(): number {
    return this.#here.size;
  }

  async stop(): Promise<void> {
    this.#stopped = true;
    this.#announcements.stop();
    this.#stopEchoCheck?.();
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
    const { clock, channels, devices, onConnected } = this.#deps;
    const device = devices.adopt(row);
    this.#lastStamp = Math.max(clock.now() * stampsPerMs, this.#lastStamp + 1);
    const openedMs = clock.monotonic();
    const session = new DeviceSession(this, owner, device, this.#lastStamp, openedMs, credentialsVersion);
    const former = this.#here.get(row.number);
    if (former) this.#remove(former);
    this.#here.set(row.number, session);
    channels.enter(row.number);
    former?.notifyEnd('taken_over');
    onConnected(device);
    const activation = channels.activation(row.number);
    if (activation) void activation.then(() => this.#announcements.add(session));
    else this.#announcements.add(session);
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
    // Delete first: setting again moves the device to the end of the eviction order.
    this.#changed.delete(number);
    const evictedAt = this.#changed.set(number, now);
    // The evicted device may be signing in, and so may any other one.
    if (evictedAt !== undefined) this.#allChangedMs = Math.max(this.#allChangedMs, evictedAt);
    const session = this.#here.get(number);
    if (!session) return;
    if (change.deleted) this.#over(session, 'device_deleted');
    else this.#checkSoon(number);
  }

  /** Called by `DeviceSession.end`. */
  left(session: DeviceSession): void {
    const { device } = session;
    if (this.#here.get(device.number) === session) {
      this.#remove(session);
      this.#deps.onDisconnected(device);
    }
    this.#deps.devices.release(device);
  }

  #over(session: DeviceSession, reason: SessionEnd): void {
    this.#remove(session);
    if (reason !== 'taken_over') this.#deps.onDisconnected(session.device);
    session.notifyEnd(reason);
  }

  #remove(session: DeviceSession): void {
    const { number } = session.device;
    this.#here.delete(number);
    this.#endWait(session);
    this.#deps.channels.leave(number);
  }

  /** Called when the last announcement of the session need not come back any more. */
  #endWait({ announcement }: DeviceSession): void {
    const awaited = this.#awaited.get(announcement);
    if (awaited === undefined) return;
    awaited.waiting -= 1;
    if (awaited.waiting === 0) this.#awaited.delete(announcement);
  }

  #publish(sessions: DeviceSession[]): void {
    const { channels, clock } = this.#deps;
    const open = sessions.filter((session) => this.#here.get(session.device.number) === session);
    for (const [channel, group] of channels.byChannel(open, ({ device }) => device.number)) {
      this.#lastMessage += 1;
      const message: SessionMessage = {
        kind: 'session',
        from: channels.node,
        number: this.#lastMessage,
        sessions: group.map(({ device, stamp, announcement, openedMs }) => {
          return [device.number, stamp, announcement === 0 ? 1 : 0, Math.floor(clock.monotonic() - openedMs)];
        }),
      };
      const awaited: Awaited = { sessions: group, waiting: 0, sentMs: clock.monotonic() };
      for (const session of group) {
        // A message may have a session twice.
        if (session.announcement === this.#lastMessage) continue;
        this.#endWait(session);
        session.announcement = this.#lastMessage;
        session.isAnnounced = false;
        awaited.waiting += 1;
      }
      this.#awaited.set(this.#lastMessage, awaited);
      channels.publish(channel, message);
    }
    this.#stopEchoCheck ??= this.#scheduler.after(limits.sessionEchoMs, () => this.#announceLost());
  }

  /** Called after a reconnect. Announcements of other workers for the same devices may be lost. */
  #restored(): void {
    this.#announcements.repeat(() => [...this.#here.values()]);
  }

  /**
   * Announces sessions again whose announcement has not come back: the bus had no room for it, or no connection. As
   * many messages as after a gap: while the bus overflows, the next announcement is lost as well.
   */
  #announceLost(): void {
    this.#stopEchoCheck = undefined;
    const { bus, clock } = this.#deps;
    const before = clock.monotonic() - limits.sessionEchoMs;
    if (bus.connected) {
      let room = (repeatedPerSecond(this.size) * limits.sessionEchoMs) / 1000;
      for (const [number, { sessions, sentMs }] of this.#awaited) {
        if (sentMs > before || room < 1) break;
        this.#awaited.delete(number);
        for (const session of new Set(sessions)) {
          if (session.announcement !== number || this.#here.get(session.device.number) !== session) continue;
          room -= 1;
          this.#announcements.add(session);
        }
      }
    }
    if (this.#awaited.size > 0) {
      this.#stopEchoCheck = this.#scheduler.after(limits.sessionEchoMs, () => this.#announceLost());
    }
  }

  #receive(message: object): void {
    if (!isSessionMessage(message)) throw new UnreadMessage('another shape');
    const { from, number, sessions } = message;
    const isOwn = from === this.#deps.channels.node;
    for (const entry of sessions) {
      const session = this.#here.get(entry[0]);
      if (!isOwn) this.#lastStamp = Math.max(this.#lastStamp, entry[1]);
      if (!session) continue;
      if (!isOwn) this.#compareWith(session, entry, from);
      else if (session.announcement === number) session.isAnnounced = true;
    }
    if (isOwn) this.#awaited.delete(number);
  }

  #compareWith(session: DeviceSession, entry: Entry, from: string): void {
    const isComparable = session.isAnnounced || !this.#deps.bus.spansHosts;
    if (isComparable && this.#isNewer(entry, from, session)) this.#over(session, 'taken_over');
    else if (session.isAnnounced) this.#announcements.add(session);
  }

  #isNewer([, stamp, isFirst, waitedMs]: Entry, from: string, session: DeviceSession): boolean {
    const { bus, channels, clock } = this.#deps;
    if (bus.spansHosts && isFirst === 1) return clock.monotonic() - session.openedMs > waitedMs;
    return stamp > session.stamp || (stamp === session.stamp && from > channels.node);
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
    const ending = new AbortController();
    const endPause = () => ending.abort();
    this.#endPause = endPause;
    return this.#scheduler.sleep(limits.credentialPollMs, ending.signal);
  }

  #compare(numbers: number[], rows: StoredDevice[]): void {
    const stored = new Map(rows.map((row) => [row.number, row]));
    for (const number of numbers) {
      const session = this.#here.get(number);
      if (!session) continue;
      const row = stored.get(number);
      // The number of a device that PostgreSQL has lost may be that of another device now.
      if (row?.id !== session.device.id) {
        this.#over(session, 'device_deleted');
      } else {
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
