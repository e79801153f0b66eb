/**
 * Whether devices are alive: every operation of a device leaves a mark on its `CachedDevice`, and twice a second what
 * was marked is written in batches, as server attributes and as the row that `active` of a device is read from. A
 * device that goes on sending has its turn every ten seconds only, the fleet spread evenly over them: Postgres has
 * better things to do than to note the same of everybody again and again. Silence is looked for in the stored times, by
 * whichever worker comes first, so a device that is alive on one worker or host is never declared inactive by another.
 * While the database is unavailable marks are kept and no device becomes inactive.
 */
import type { Clock } from '../base/clock.ts';
import { Fault, messageOf } from '../base/errors.ts';
import { limits } from '../base/limits.ts';
import type { Log } from '../base/log.ts';
import type { CachedDevice } from '../device/cached-device.ts';
import type { Postgres } from '../postgres/client.ts';
import { type ActivityMark, endActivity, recordActivity } from './activity-store.ts';

export interface ActivityDeps {
  postgres: Postgres;
  clock: Clock;
  log: Log;
  /** Silence after which a device without a server attribute `inactivityTimeout` is inactive. */
  inactivityMs: number;
  /** 0 = this worker leaves looking for silence to others. */
  checkMs: number;
}

export class Activity {
  readonly #deps: ActivityDeps;
  #noted: CachedDevice[] = [];
  /** Sessions that began or ended, by device. */
  #sessions = new Map<number, { connectTs: number; disconnectTs: number }>();
  #timer: NodeJS.Timeout | undefined;
  #running: Promise<void> = Promise.resolve();
  #stopped = false;
  /** Monotonic time since which the database has taken what it was given. */
  #settledSince: number;
  #checkedMs: number;
  /** How far the stored time of a device that goes on sending may be behind. */
  readonly #steadyMs: number;
  #rounds = 0;

  constructor(deps: ActivityDeps) {
    this.#deps = deps;
    const { activityWriteMs, activitySteadyMsMax } = limits;
    this.#steadyMs = Math.max(activityWriteMs, Math.min(activitySteadyMsMax, deps.inactivityMs / 20));
    this.#settledSince = deps.clock.monotonic();
    this.#checkedMs = this.#settledSince;
  }

  /** A sign of life. On the hot path: an assignment and two comparisons. */
  readonly touch = (device: CachedDevice): void => {
    const now = this.#deps.clock.now();
    if (now - device.activeTs > this.#steadyMs) device.isActivitySteady = false;
    device.activeTs = now;
    if (device.isActivityNoted) return;
    device.isActivityNoted = true;
    this.#noted.push(device);
  };

  /** A session of the device began; HTTP has none. */
  connected(device: CachedDevice): void {
    this.touch(device);
    this.#session(device.number).connectTs = this.#deps.clock.now();
  }

  /** The last session of the device ended, which is no sign of life. */
  disconnected(device: CachedDevice): void {
    this.#session(device.number).disconnectTs = this.#deps.clock.now();
  }

  start(): void {
    this.#schedule();
  }

  /** Writes what is marked, once. */
  async stop(): Promise<void> {
    this.#stopped = true;
    clearTimeout(this.#timer);
    await this.#running;
    for (const device of this.#noted) device.isActivitySteady = false;
    await this.#write();
  }

  #session(device: number): { connectTs: number; disconnectTs: number } {
    let session = this.#sessions.get(device);
    if (!session) {
      session = { connectTs: 0, disconnectTs: 0 };
      this.#sessions.set(device, session);
    }
    return session;
  }

  /** The next round begins when this one is done: a slow database makes rounds longer, not more. */
  #schedule(): void {
    if (this.#stopped) return;
    this.#timer = setTimeout(() => {
      this.#running = this.#round().finally(() => this.#schedule());
    }, limits.activityWriteMs);
  }

  async #round(): Promise<void> {
    const { clock, checkMs } = this.#deps;
    await this.#write();
    if (checkMs === 0 || clock.monotonic() - this.#checkedMs < checkMs) return;
    // After an outage or a start the other workers get the time to write what they know.
    const settleMs = Math.max(limits.activitySettleMs, 2 * this.#steadyMs);
    if (clock.monotonic() - this.#settledSince < settleMs) return;
    this.#checkedMs = clock.monotonic();
    await this.#check();
  }

  async #write(): Promise<void> {
    const { postgres, clock } = this.#deps;
    const marks = this.#takeMarks();
    // An empty round asks too: whether the database is there decides when silence may count.
    for (let i = 0; i === 0 || i < marks.length; i += limits.activityRowsMax) {
      try {
        await recordActivity(postgres, marks.slice(i, i + limits.activityRowsMax), clock.now());
      } catch (error) {
        this.#report('activity_unwritten', error);
        this.#settledSince = clock.monotonic();
        for (const { session, source, device } of marks.slice(i)) this.#keep(device, source, session);
        return;
      }
    }
  }

  #takeMarks(): Mark[] {
    const marks = new Map<number, Mark>();
    const waiting: CachedDevice[] = [];
    const turns = Math.max(1, Math.floor(this.#steadyMs / limits.activityWriteMs));
    const turn = ++this.#rounds % turns;
    for (const source of this.#noted) {
      if (source.isActivitySteady && source.number % turns !== turn) {
        waiting.push(source);
        continue;
      }
      source.isActivityNoted = false;
      source.isActivitySteady = true;
      const known = marks.get(source.number);
      // A token that was looked up again has a second object for the same device.
      if (known && known.activeTs >= source.activeTs) continue;
      marks.set(source.number, { device: source.number, activeTs: source.activeTs, ...noSession, source });
    }
    for (const [device, session] of this.#sessions) {
      const known = marks.get(device);
      marks.set(device, { device, activeTs: 0, ...known, ...session, session });
    }
    this.#noted = waiting;
    this.#sessions = new Map();
    return [...marks.values()];
  }

  /** What could not be written waits for the next round, unless something newer does already. */
  #keep(device: number, source: CachedDevice | undefined, session: Mark['session']): void {
    if (source) {
      source.isActivitySteady = false;
      if (!source.isActivityNoted) this.#noted.push(source);
      source.isActivityNoted = true;
    }
    if (!session) return;
    const newer = this.#session(device);
    newer.connectTs ||= session.connectTs;
    newer.disconnectTs ||= session.disconnectTs;
  }

  async #check(): Promise<void> {
    const { postgres, clock, inactivityMs } = this.#deps;
    try {
      // Another worker may have heard of the device and not written it yet.
      const writtenUpTo = clock.now() - 2 * Math.max(this.#steadyMs, limits.activityLateMs);
      for (let ended: number = limits.activityRowsMax; ended === limits.activityRowsMax && !this.#stopped; ) {
        ended = await endActivity(postgres, writtenUpTo, inactivityMs, limits.activityRowsMax, clock.now());
      }
    } catch (error) {
      this.#report('inactivity_unchecked', error);
      this.#settledSince = clock.monotonic();
    }
  }

  /** A database that is away is expected; what it refuses is not, and is tried again all the same. */
  #report(event: string, error: unknown): void {
    this.#deps.log[error instanceof Fault ? 'warn' : 'error'](event, { reason: messageOf(error) });
  }
}

const noSession = { connectTs: 0, disconnectTs: 0 };

interface Mark extends ActivityMark {
  source?: CachedDevice;
  session?: { connectTs: number; disconnectTs: number };
}
