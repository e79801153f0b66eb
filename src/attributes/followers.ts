/**
 * Sends every change of a device's shared attributes to its followers after the commit, and first the changes that the
 * device has missed. A change arrives over the downlink with its version. After a gap in the versions the store is
 * read. Once a second the store is also asked for new versions (version-poll.ts), because the bus may lose a message. A
 * device that knows every change is remembered as settled: its next poll reads nothing from the store.
 */
import type { Clock } from '../base/clock.ts';
import { FifoMap } from '../base/fifo-map.ts';
import { limits } from '../base/limits.ts';
import type { Log } from '../base/log.ts';
import type { Metrics } from '../base/metrics/metrics.ts';
import { type Scheduler, systemScheduler } from '../base/scheduler.ts';
import type { Downlink, Listener, ListenerCloseReason } from '../downlink/downlink.ts';
import type { Queries } from '../postgres/client.ts';
import type { OnPoll } from '../postgres/shared-poll.ts';
import { readUpdateMessage } from './notify.ts';
import type { Update } from './update.ts';
import { type Arrival, type Followed, UpdateReads } from './update-reads.ts';
import { VersionPoll } from './version-poll.ts';

/** A session that receives updates. */
export interface Follower {
  update(update: Update): void;
  /** Called when the store cannot be read. */
  failed(error: unknown): void;
  /** Closes the session, as `close` of a downlink `Listener` does. */
  close(reason: ListenerCloseReason): void;
}

interface AttributeUpdatesDeps {
  postgres: Queries;
  downlink: Downlink;
  clock: Clock;
  scheduler?: Scheduler;
  log: Log;
  metrics: Metrics;
  /** False: a device receives only changes made while it listens. */
  lossFree: boolean;
  onPoll?: OnPoll;
}

export class AttributeUpdates {
  readonly #downlink: Downlink;
  readonly #clock: Clock;
  readonly scheduler: Scheduler;
  readonly #lossFree: boolean;
  readonly #reads: UpdateReads;
  readonly #versionPoll: VersionPoll;
  readonly #followings = new Map<number, Following[]>();
  /** Device → the version up to which the device knows every change. */
  readonly #settled = new FifoMap<number, number>(limits.settledDevicesMax);
  /** Devices for which a read of the store is running, and the highest version that this worker received meanwhile. */
  readonly #asked = new Map<number, { asks: number; version: number }>();
  /** Stop the timers of versions of the store that the bus may still deliver; at most `updateHeadsRowsMax` a poll. */
  readonly #late = new Set<() => void>();

  constructor({
    postgres,
    downlink,
    clock,
    scheduler = systemScheduler,
    log,
    metrics,
    lossFree,
    onPoll,
  }: AttributeUpdatesDeps) {
    this.#downlink = downlink;
    this.#clock = clock;
    this.scheduler = scheduler;
    this.#lossFree = lossFree;
    this.#reads = new UpdateReads(postgres, log);
    this.#versionPoll = new VersionPoll({
      postgres,
      clock,
      scheduler,
      log,
      onVersion: (device, version) => this.#notifyVersion(device, version),
      onPoll,
    });
    downlink.watch('attributes', (device, message) => this.#unsettle(device, readUpdateMessage(message).version));
    metrics.observed(
      'attribute_followers',
      'Devices that are notified of shared attributes.',
      () => this.#followings.size,
    );
  }

  start(): void {
    if (this.#lossFree) this.#versionPoll.start(() => this.#askForAll());
  }

  async stop(): Promise<void> {
    await this.#versionPoll.stop();
    for (const stopTimer of this.#late) stopTimer();
    await this.#reads.idle();
  }

  follow(followed: Followed, follower: Follower): Following {
    const device = followed.number;
    const following = new Following(this, followed, follower, this.#clock.now());
    const followings = this.#followings.get(device);
    if (followings) followings.push(following);
    else this.#followings.set(device, [following]);
    following.leaveDownlink = this.#downlink.listen(device, 'attributes', following);
    // The first read starts when messages to the listener arrive: later changes come over the downlink.
    if (this.#lossFree) void this.#downlink.inForce(device).then(() => following.ask());
    return following;
  }

  get lossFree(): boolean {
    return this.#lossFree;
  }

  /** Returns the next update that the device has not seen. Called by `Following`, as are the methods below. */
  async pendingUpdate(followed: Followed, since: number): Promise<{ version: number; update: Update | undefined }> {
    const device = followed.number;
    const settled = this.#versionPoll.isFresh ? this.#settled.get(device) : undefined;
    if (settled !== undefined) return { version: settled, update: undefined };
    const asked = this.#asked.get(device) ?? { asks: 0, version: 0 };
    asked.asks += 1;
    this.#asked.set(device, asked);
    try {
      const answer = await this.#reads.ask(followed, since);
      // A version that arrived during the read may be newer than the answer: then the device is not settled.
      const isNewest = asked.version <= answer.version;
      if (!answer.update && isNewest && this.#versionPoll.isFresh) this.#settled.set(device, answer.version);
      return answer;
    } finally {
      asked.asks -= 1;
      if (asked.asks === 0) this.#asked.delete(device);
    }
  }

  /** Reads a change that is too large for the bus. */
  read(device: number, version: number): Promise<Update | undefined> {
    return this.#reads.readFrom(device, version - 1);
  }

  answered(device: number, update: Update, arrival: Arrival): void {
    if (!this.#lossFree) return;
    this.#settled.delete(device);
    this.#reads.offer(device, update, arrival);
  }

  left(device: number, following: Following): void {
    const followings = this.#followings.get(device)!;
    followings.splice(followings.indexOf(following), 1);
    if (followings.length === 0) this.#followings.delete(device);
  }

  #unsettle(device: number, version: number): void {
    const asked = this.#asked.get(device);
    if (asked !== undefined) asked.version = Math.max(asked.version, version);
    const settled = this.#settled.get(device);
    if (settled !== undefined && settled < version) this.#settled.delete(device);
  }

  /**
   * Reads the store for a version that the bus has not delivered a moment after its commit. Nearly every version is
   * delivered. A needless read would delay later versions until the client confirms, and two polls of one device would
   * share the answer.
   */
  #notifyVersion(device: number, version: number): void {
    this.#unsettle(device, version);
    if (!this.#followings.has(device)) return;
    const stopTimer = this.scheduler.after(limits.updateBusMs, () => {
      this.#late.delete(stopTimer);
      for (const following of [...(this.#followings.get(device) ?? [])]) following.receiveVersion(version);
    });
    this.#late.add(stopTimer);
  }

  /** Called when versions may have changed that cannot be passed on separately. */
  #askForAll(): void {
    this.#settled.clear();
    for (const asked of this.#asked.values()) asked.version = Number.POSITIVE_INFINITY;
    for (const followings of [...this.#followings.values()]) for (const following of [...followings]) following.ask();
  }
}

export class Following implements Listener {
  readonly #owner: AttributeUpdates;
  readonly #followed: Followed;
  readonly #follower: Follower;
  /** Epoch milliseconds. A device that never listened before receives changes from this time on. */
  readonly #since: number;
  leaveDownlink: (() => void) | undefined = undefined;
  /** The version up to which the follower has every change; undefined while the store is read. */
  #known: number | undefined = undefined;
  #latest = 0;
  #asking = false;
  #hasAsked = false;
  /** Resolves when the first read has ended, well or not; undefined after it. */
  #beginning: Promise<void> | undefined = undefined;
  #hasWaited = false;
  #left = false;

  constructor(owner: AttributeUpdates, followed: Followed, follower: Follower, since: number) {
    this.#since = since;
    this.#owner = owner;
    this.#followed = followed;
    this.#follower = follower;
  }

  /** Receives a change from the downlink. */
  receive(message: object): void {
    if (this.#left) return;
    const { kind, version, json } = readUpdateMessage(message);
    if (!this.#owner.lossFree) {
      if (json !== undefined) this.#follower.update({ kind, version, json });
      else void this.#readLarge(version);
    } else if (this.#known !== undefined && version === this.#known + 1 && json !== undefined) {
      this.#known = version;
      this.#follower.update({ kind, version, json });
    } else {
      this.receiveVersion(version);
    }
  }

  /** Notes that the version exists, and reads the store if the follower does not know the version. */
  receiveVersion(version: number): void {
    if (version > this.#latest) this.#latest = version;
    if (this.#known !== undefined && version > this.#known) this.ask();
  }

  close(reason: ListenerCloseReason): void {
    this.#follower.close(reason);
  }

  /** The answer with this update was written. Whether the answer arrived is not certain. */
  offered(update: Update): void {
    this.#owner.answered(this.#followed.number, update, 'unsure');
  }

  /** The client has confirmed the update. Sends the next one. */
  confirmed(update: Update): void {
    this.#owner.answered(this.#followed.number, update, 'confirmed');
    if (this.#known === undefined && this.#owner.lossFree) this.ask();
  }

  leave(): void {
    if (this.#left) return;
    this.#left = true;
    this.leaveDownlink?.();
    this.#owner.left(this.#followed.number, this);
  }

  /** Runs once even if the follower has left, because the first poll starts the device's cursor. */
  ask(): void {
    if (this.#asking || (this.#left && this.#hasAsked)) return;
    this.#asking = true;
    this.#known = undefined;
    const asked = this.#ask();
    if (this.#hasAsked) return;
    this.#hasAsked = true;
    this.#beginning = asked.then(() => {
      this.#beginning = undefined;
    });
  }

  /** Resolves when the device has a cursor, or the store cannot be read; undefined: the first read has ended. */
  begin(): Promise<void> | undefined {
    if (!this.#owner.lossFree) return undefined;
    if (!this.#hasAsked) this.ask();
    return this.#beginning;
  }

  async #ask(): Promise<void> {
    try {
      const update = await this.#nextUpdate();
      // The follower may confirm at once, which asks for the next update.
      if (update && !this.#left) this.#follower.update(update);
    } catch (error) {
      if (!this.#left) this.#follower.failed(error);
    }
  }

  /** Returns undefined when the follower has every change. */
  async #nextUpdate(): Promise<Update | undefined> {
    try {
      for (;;) {
        const { version, update } = await this.#owner.pendingUpdate(this.#followed, this.#since);
        if (this.#left) return undefined;
        if (update && !this.#hasWaited) {
          // The confirmation of the last answer may still be in transit from another worker. A second read after a wait
          // then finds nothing.
          this.#hasWaited = true;
          await this.#owner.scheduler.sleep(limits.updateSettleMs);
          continue;
        }
        if (update) return update;
        if (version >= this.#latest) {
          this.#known = version;
          this.#hasWaited = true;
          return undefined;
        }
        // A newer version exists: read again, once. A store whose version stays lower was restored from an older state.
        this.#latest = version;
      }
    } finally {
      this.#asking = false;
    }
  }

  async #readLarge(version: number): Promise<void> {
    try {
      const update = await this.#owner.read(this.#followed.number, version);
      if (update && !this.#left) this.#follower.update(update);
    } catch (error) {
      if (!this.#left) this.#follower.failed(error);
    }
  }
}
