/**
 * Who follows the shared attributes of a device is told each change after its commit, and at the start what the device
 * does not know yet. A change comes over the downlink with its version, so a gap shows, and then the store is read;
 * once a second the store is also asked which versions are new (changed-heads.ts), because the bus may lose a message.
 * A device that knows everything is remembered as settled: its next poll asks nothing of the store.
 */
import { setTimeout as sleep } from 'node:timers/promises';
import type { Clock } from '../base/clock.ts';
import { FifoMap } from '../base/fifo-map.ts';
import { limits } from '../base/limits.ts';
import type { Log } from '../base/log.ts';
import type { Metrics } from '../base/metrics.ts';
import type { CloseReason, Downlink, Listener } from '../downlink/downlink.ts';
import type { Queries } from '../postgres/client.ts';
import type { UpdateMessage } from './notify.ts';
import type { News } from './update.ts';
import { Inquiries } from './update-reads.ts';
import { ChangedHeads } from './version-poll.ts';

/** A session that wants to know. */
export interface Follower {
  news(news: News): void;
  /** The store cannot say what the device does not know yet. */
  failed(error: unknown): void;
  /** As of a downlink `Listener`. */
  close(reason: CloseReason): void;
}

export interface AttributeUpdatesDeps {
  postgres: Queries;
  downlink: Downlink;
  clock: Clock;
  log: Log;
  metrics: Metrics;
  /** False: a device receives only changes made while it listens. */
  lossFree: boolean;
}

export class AttributeUpdates {
  readonly #downlink: Downlink;
  readonly #clock: Clock;
  readonly #lossFree: boolean;
  readonly #inquiries: Inquiries;
  readonly #heads: ChangedHeads;
  readonly #followings = new Map<number, Following[]>();
  /** Device → the version up to which it knows everything. */
  readonly #settled = new FifoMap<number, number>(limits.settledDevicesMax);
  /** Devices that the store is being asked about, and the highest version that this worker received meanwhile. */
  readonly #asked = new Map<number, { asks: number; version: number }>();

  constructor({ postgres, downlink, clock, log, metrics, lossFree }: AttributeUpdatesDeps) {
    this.#downlink = downlink;
    this.#clock = clock;
    this.#lossFree = lossFree;
    this.#inquiries = new Inquiries(postgres, log);
    this.#heads = new ChangedHeads({
      postgres,
      clock,
      log,
      onVersion: (device, version) => this.#hear(device, version),
    });
    downlink.watch('attributes', (device, message) => this.#unsettle(device, (message as UpdateMessage).version));
    metrics.observed(
      'attribute_followers',
      'Devices that are notified of shared attributes.',
      () => this.#followings.size,
    );
  }

  start(): void {
    if (this.#lossFree) this.#heads.start(() => this.#hearAll());
  }

  async stop(): Promise<void> {
    await this.#heads.stop();
    await this.#inquiries.idle();
  }

  follow(device: number, follower: Follower): Following {
    const following = new Following(this, device, follower, this.#clock.now());
    const followings = this.#followings.get(device);
    if (followings) followings.push(following);
    else this.#followings.set(device, [following]);
    following.leaveDownlink = this.#downlink.listen(device, 'attributes', following);
    // Changes from then on arrive.
    if (this.#lossFree) void this.#downlink.inForce(device).then(() => following.ask());
    return following;
  }

  get lossFree(): boolean {
    return this.#lossFree;
  }

  /** Of `Following` only, as is all below. */
  async standing(device: number, since: number): Promise<{ version: number; news: News | undefined }> {
    const settled = this.#heads.isFresh ? this.#settled.get(device) : undefined;
    if (settled !== undefined) return { version: settled, news: undefined };
    const asked = this.#asked.get(device) ?? { asks: 0, version: 0 };
    asked.asks += 1;
    this.#asked.set(device, asked);
    try {
      const answer = await this.#inquiries.ask(device, since);
      // The answer may be older than a version that arrived before it: then the device is not settled.
      const isNewest = asked.version <= answer.version;
      if (!answer.news && isNewest && this.#heads.isFresh) this.#settled.set(device, answer.version);
      return answer;
    } finally {
      asked.asks -= 1;
      if (asked.asks === 0) this.#asked.delete(device);
    }
  }

  /** A change that is too large for the bus. */
  read(device: number, version: number): Promise<News | undefined> {
    return this.#inquiries.readFrom(device, version - 1);
  }

  told(device: number, news: News, confirmed: boolean): void {
    if (!this.#lossFree) return;
    this.#settled.delete(device);
    this.#inquiries.offer(device, news, confirmed);
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

  #hear(device: number, version: number): void {
    this.#unsettle(device, version);
    for (const following of [...(this.#followings.get(device) ?? [])]) following.hear(version);
  }

  /** Called when too much changed to hand over one by one. */
  #hearAll(): void {
    this.#settled.clear();
    for (const asked of this.#asked.values()) asked.version = Number.POSITIVE_INFINITY;
    for (const followings of [...this.#followings.values()]) for (const following of [...followings]) following.ask();
  }
}

export class Following implements Listener {
  readonly #owner: AttributeUpdates;
  readonly #device: number;
  readonly #follower: Follower;
  /** Epoch milliseconds: a device that never listened before receives what was written from then on. */
  readonly #since: number;
  leaveDownlink: (() => void) | undefined = undefined;
  /** The version up to which the follower has every change; undefined while the store is being asked. */
  #known: number | undefined = undefined;
  #heard = 0;
  #asking = false;
  #hasAsked = false;
  #hasWaited = false;
  #left = false;

  constructor(owner: AttributeUpdates, device: number, follower: Follower, since: number) {
    this.#since = since;
    this.#owner = owner;
    this.#device = device;
    this.#follower = follower;
  }

  /** A change, of the downlink. */
  receive(message: object): void {
    const { kind, version, json } = message as UpdateMessage;
    if (!this.#owner.lossFree) {
      if (json !== undefined) this.#follower.news({ kind, version, json });
      else void this.#readLarge(version);
    } else if (this.#known !== undefined && version === this.#known + 1 && json !== undefined) {
      this.#known = version;
      this.#follower.news({ kind, version, json });
    } else {
      this.hear(version);
    }
  }

  /** There is a version. */
  hear(version: number): void {
    if (version > this.#heard) this.#heard = version;
    if (this.#known !== undefined && version > this.#known) this.ask();
  }

  close(reason: CloseReason): void {
    this.#follower.close(reason);
  }

  /** The answer with this news was written; whether it arrived is not certain. */
  offered(news: News): void {
    this.#owner.told(this.#device, news, false);
  }

  /** The client has said that it has this news. Goes on with what else there is. */
  confirmed(news: News): void {
    this.#owner.told(this.#device, news, true);
    if (this.#known === undefined && this.#owner.lossFree) this.ask();
  }

  leave(): void {
    if (this.#left) return;
    this.#left = true;
    this.leaveDownlink?.();
    this.#owner.left(this.#device, this);
  }

  /**
   * Runs once even if the follower has left, because the first poll starts the device's cursor.
   */
  ask(): void {
    if (this.#asking || (this.#left && this.#hasAsked)) return;
    this.#asking = true;
    this.#hasAsked = true;
    this.#known = undefined;
    void this.#ask();
  }

  async #ask(): Promise<void> {
    try {
      for (;;) {
        const { version, news } = await this.#owner.standing(this.#device, this.#since);
        if (this.#left) return;
        if (news && !this.#hasWaited) {
          // The last answer, of another worker, may be on its way into the store: once it is there, this is no news.
          this.#hasWaited = true;
          await sleep(limits.updateSettleMs);
          continue;
        }
        if (news) {
          this.#asking = false;
          this.#follower.news(news);
          return;
        }
        if (version >= this.#heard) {
          this.#known = version;
          this.#hasWaited = true;
          return;
        }
        // Heard of while it was read: once more. A store that stays behind was restored from an older state.
        this.#heard = version;
      }
    } catch (error) {
      if (!this.#left) this.#follower.failed(error);
    } finally {
      this.#asking = false;
    }
  }

  async #readLarge(version: number): Promise<void> {
    try {
      const news = await this.#owner.read(this.#device, version);
      if (news && !this.#left) this.#follower.news(news);
    } catch (error) {
      if (!this.#left) this.#follower.failed(error);
    }
  }
}
