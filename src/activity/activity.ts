/**
 * Records which devices are active. Each operation of a device is noted in memory (`SeenTimes`). A round runs twice a
 * second: it writes devices that woke up as active, and the blocks whose turn has come. A block holds the last activity
 * of 512 devices, so a device that keeps sending costs no row. `Silence` judges only stored times, up to the time
 * before which every worker of every host has stored all activity. While the database is unavailable, activity is kept
 * in memory and no device becomes inactive.
 */
import { randomUUID } from 'node:crypto';
import { type Clock, clockStepMs } from '../base/clock.ts';
import { Fault, messageOf } from '../base/errors.ts';
import { limits } from '../base/limits.ts';
import type { Log } from '../base/log.ts';
import { type Scheduler, systemScheduler } from '../base/scheduler.ts';
import type { CachedDevice } from '../device/model/cached-device.ts';
import type { Postgres } from '../postgres/client.ts';
import { isAway, isLostRace } from '../postgres/postgres-error.ts';
import type { OnPoll } from '../postgres/shared-poll.ts';
import {
  type ActivityMark,
  forgetWriter,
  raiseFloor,
  raiseFloorWhenAlone,
  recordMarks,
  reportSettled,
} from './activity-store.ts';
import { readBlocks, replaceBlocks } from './block-store.ts';
import { mergeTimes } from './blocks.ts';
import { EndedDevices } from './ended-devices.ts';
import { type SeenBlock, SeenTimes } from './seen-times.ts';
import { Silence } from './silence.ts';
import { lastDevice, readActiveNumbers } from './silence-store.ts';

interface ActivityDeps {
  postgres: Postgres;
  clock: Clock;
  scheduler?: Scheduler;
  log: Log;
  /** Silence after which a device without a server attribute `inactivityTimeout` is inactive. */
  inactivityMs: number;
  /** Interval of the checks for silent devices; 0 = other workers make them, not this one. */
  checkMs: number;
  /** Returns the time of the database's clock; by default asks the database. */
  databaseTime?: () => Promise<number>;
  onPoll?: OnPoll;
}

interface SessionTimes {
  connectTs: number;
  disconnectTs: number;
}

export class Activity {
  readonly #deps: ActivityDeps;
  readonly #silence: Silence | undefined;
  readonly #seen = new SeenTimes();
  /** Sessions that began or ended, by device. */
  readonly #sessions = new Map<number, SessionTimes>();
  /** Blocks that could not be written in their turn. */
  readonly #overdue = new Set<SeenBlock>();
  /** Stops the timer of the next round. */
  #stopTimer = () => {};
  #running: Promise<void> = Promise.resolve();
  #checking: Promise<void> | undefined;
  #stopped = false;
  /**
   * A block has one turn of this many. A turn lasts `activityWriteMs`: usually each round has one, and a round after a
   * long one has those that have passed. So the stored time of a device that keeps sending is as old as all turns.
   */
  readonly #turns: number;
  /** The last turn; random at the start, so that two workers seldom write the same block at once. */
  #turn = Math.floor(Math.random() * 1_000);
  /** Monotonic time up to which turns were taken. */
  #turnMs: number;
  /** The id of this process in `activity_writer`. */
  readonly #writer = randomUUID();
  /** The monotonic time of the last report; minus infinity before the first one. */
  #reportedMs = Number.NEGATIVE_INFINITY;
  /** The last reported time: all activity before this time is stored. */
  #settledTime = 0;
  readonly #ended: EndedDevices;
  /** The active devices below this number are loaded; undefined = all are. */
  #loaded: number | undefined = 0;
  /** The clock minus the monotonic clock; it changes when the clock is stepped. */
  #shift: number;

  constructor(deps: ActivityDeps) {
    this.#deps = deps;
    const steadyMs = Math.min(limits.activitySteadyMsMax, deps.inactivityMs / 12);
    this.#turns = Math.max(1, Math.floor(steadyMs / limits.activityWriteMs));
    this.#silence = deps.checkMs === 0 ? undefined : new Silence(deps);
    this.#turnMs = deps.clock.monotonic();
    this.#shift = deps.clock.now() - this.#turnMs;
    this.#ended = new EndedDevices(deps, this.#seen);
  }

  /** Notes an activity. On the hot path: finds one block and assigns one time. `now` saves a reading of the clock. */
  readonly touch = (device: Pick<CachedDevice, 'number'>, now: number = this.#deps.clock.now()): void => {
    this.#seen.note(device.number, now);
  };

  /** Called when a session of the device began; HTTP has no sessions. */
  connected(device: CachedDevice): void {
    const now = this.#deps.clock.now();
    this.touch(device, now);
    this.#session(device.number).connectTs = now;
  }

  /** Called when the last session of the device ended, which does not count as activity. */
  disconnected(device: CachedDevice): void {
    this.#session(device.number).disconnectTs = this.#deps.clock.now();
  }

  /**
   * Runs before the first message: a worker that PostgreSQL does not know could end unnoticed, and take activity along.
   * While PostgreSQL is unavailable, the first round that reaches PostgreSQL reports this worker.
   */
  async start(): Promise<void> {
    this.#ended.start();
    try {
      await this.#ended.apply(this.#settledTime);
      await this.#reportSettled();
    } catch (error) {
      if (!isAway(error)) this.#report('activity_unwritten', error);
    }
    this.#schedule();
  }

  /** Writes all that is noted, in one attempt. */
  async stop(): Promise<void> {
    this.#stopped = true;
    this.#stopTimer();
    this.#silence?.stop();
    await this.#ended.stop();
    await this.#running;
    await this.#checking;
    try {
      await this.#writeMarks();
      await this.#writeBlocks([...this.#seen.blocks].filter(({ unwrittenSince }) => unwrittenSince > 0));
      await forgetWriter(this.#deps.postgres, this.#writer);
    } catch (error) {
      this.#report('activity_unwritten', error);
    }
  }

  /** Runs one round: writes woken devices and the blocks whose turn has come, and starts a check when one is due. */
  async round(): Promise<void> {
    try {
      await this.#noticeStep();
      await this.#ended.apply(this.#settledTime);
      await this.#reportSettled();
      if (this.#loaded !== undefined) this.#loaded = await this.#loadActive(this.#loaded);
      this.#takeDue();
      await this.#writeMarks();
      await this.#writeBlocks([...this.#overdue]);
      await this.#reportSettled();
    } catch (error) {
      if (!isAway(error)) this.#report('activity_unwritten', error);
      return;
    }
    // A check of a large fleet takes longer than a round may.
    this.#checking ??= this.#silence
      ?.checkWhenDue()
      .catch((error: unknown) => {
        if (!isAway(error)) this.#report('inactivity_unchecked', error);
      })
      .finally(() => {
        this.#checking = undefined;
      });
  }

  #session(device: number): SessionTimes {
    let session = this.#sessions.get(device);
    if (!session) {
      session = { connectTs: 0, disconnectTs: 0 };
      this.#sessions.set(device, session);
    }
    return session;
  }

  /** Schedules the next round at the end of this one: a slow database makes rounds longer, not more. */
  #schedule(): void {
    if (this.#stopped) return;
    const { scheduler = systemScheduler } = this.#deps;
    this.#stopTimer = scheduler.after(limits.activityWriteMs, () => {
      this.#running = this.round().finally(() => this.#schedule());
    });
  }

  /** Runs before a report. After a jump of the clock, times that were noted earlier prove no silence. */
  async #noticeStep(): Promise<void> {
    const { clock, postgres, log } = this.#deps;
    const shift = clock.now() - clock.monotonic();
    const stepMs = Math.round(shift - this.#shift);
    if (!this.#hasStepped()) {
      this.#shift = shift;
      return;
    }
    await raiseFloor(postgres, clock.now());
    this.#seen.clamp(clock.now());
    for (const session of this.#sessions.values()) {
      if (session.connectTs > clock.now()) session.connectTs += stepMs;
      if (session.disconnectTs > clock.now()) session.disconnectTs += stepMs;
    }
    this.#shift = shift;
    log.warn('activity_held', { reason: 'The clock jumped: silence counts from now on.', stepMs });
  }

  #hasStepped(): boolean {
    const { clock } = this.#deps;
    return Math.abs(clock.now() - clock.monotonic() - this.#shift) > clockStepMs;
  }

  /**
   * Loads some pages of active devices, so that a worker that starts reads few devices one by one. Returns the number
   * from which the next round loads; undefined when all are loaded.
   */
  async #loadActive(from: number): Promise<number | undefined> {
    const { postgres } = this.#deps;
    const last = await lastDevice(postgres);
    const { activityPageDevices: pageDevices, activityLoadPages: pages } = limits;
    for (let n = 0, first = from; n < pages; n += 1, first += pageDevices) {
      if (first > last) return undefined;
      this.#seen.learnActive(await readActiveNumbers(postgres, first, pageDevices));
    }
    return from + pages * pageDevices;
  }

  /** Takes the blocks of the turns that have passed, at least of one. A part of a turn counts in the next round. */
  #takeDue(): void {
    const monotonic = this.#deps.clock.monotonic();
    const passed = Math.max(1, Math.round((monotonic - this.#turnMs) / limits.activityWriteMs));
    this.#turnMs = Math.min(monotonic, this.#turnMs + passed * limits.activityWriteMs);
    for (let n = Math.min(passed, this.#turns); n > 0; n -= 1) {
      this.#turn = (this.#turn + 1) % this.#turns;
      const due = this.#seen.takeDue(this.#turn, this.#turns, limits.activityIdleTurnsMax);
      for (const block of due) this.#overdue.add(block);
    }
  }

  /** Writes what was noted before this call, some at a time: in an outage a million devices may wake up. */
  async #writeMarks(): Promise<void> {
    const { postgres, clock } = this.#deps;
    for (let left = this.#seen.woken + this.#sessions.size; left > 0; left -= limits.activityRowsMax) {
      const marks = this.#takeMarks(limits.activityRowsMax);
      if (marks.length === 0) continue;
      try {
        await recordMarks(postgres, marks, clock.now());
      } catch (error) {
        this.#keepMarks(marks);
        throw error;
      }
      await this.#reportSettled();
    }
  }

  #takeMarks(count: number): ActivityMark[] {
    const marks = new Map<number, ActivityMark>();
    const now = this.#deps.clock.now();
    for (const device of this.#seen.takeWoken(count)) {
      const activeTs = Math.min(this.#seen.timeOf(device), now);
      marks.set(device, { device, activeTs, connectTs: 0, disconnectTs: 0, ...this.#sessions.get(device) });
      this.#sessions.delete(device);
    }
    for (const [device, session] of this.#sessions) {
      if (marks.size >= count) break;
      marks.set(device, { device, activeTs: 0, ...session });
      this.#sessions.delete(device);
    }
    return [...marks.values()];
  }

  /** Keeps marks that could not be written for the next round; a newer mark of the same device replaces them. */
  #keepMarks(marks: ActivityMark[]): void {
    this.#seen.keepWoken(marks.filter(({ activeTs }) => activeTs > 0).map(({ device }) => device));
    for (const { device, connectTs, disconnectTs } of marks) {
      if (connectTs === 0 && disconnectTs === 0) continue;
      const newer = this.#session(device);
      newer.connectTs ||= connectTs;
      newer.disconnectTs ||= disconnectTs;
    }
  }

  async #writeBlocks(blocks: SeenBlock[]): Promise<void> {
    for (let i = 0; i < blocks.length; i += limits.activityBlocksMax) {
      await this.#writeSome(blocks.slice(i, i + limits.activityBlocksMax));
      await this.#reportSettled();
    }
  }

  async #writeSome(blocks: SeenBlock[]): Promise<void> {
    const { postgres, clock } = this.#deps;
    let left = new Map(blocks.map((seen) => [seen.block, seen]));
    while (left.size > 0) {
      const stored = await readBlocks(postgres, [...left.keys()]);
      // An activity that is noted from here on is written in the next turn.
      const since = new Map([...left.values()].map((seen) => [seen, seen.unwrittenSince]));
      for (const seen of left.values()) seen.unwrittenSince = 0;
      const changed = stored.filter(({ block, times }) => mergeTimes(times, left.get(block)!.times, clock.now()));
      let replaced = new Set<number>();
      try {
        if (changed.length > 0) replaced = await replaceBlocks(postgres, changed);
      } finally {
        const lost = changed.filter(({ block }) => !replaced.has(block));
        left = new Map(lost.map(({ block }) => [block, left.get(block)!]));
        for (const seen of left.values()) seen.unwrittenSince = since.get(seen) || seen.unwrittenSince;
      }
    }
    for (const seen of blocks) this.#overdue.delete(seen);
  }

  /**
   * Reports up to which time all activity is stored, when a report is due. Runs before the first write and after each
   * further one: a check waits only for workers that have reported lately, and a round may be long.
   */
  async #reportSettled(): Promise<void> {
    const { postgres, clock, log } = this.#deps;
    const monotonic = clock.monotonic();
    const everyMs = Math.min(limits.activityReportMs, this.#turns * limits.activityWriteMs);
    // The next round notices a jump of the clock, before a report.
    if (monotonic - this.#reportedMs < everyMs || this.#hasStepped()) return;
    const now = clock.now();
    const isFirst = this.#reportedMs === Number.NEGATIVE_INFINITY;
    if (isFirst && (await raiseFloorWhenAlone(postgres, now))) {
      log.info('activity_held', {
        reason: 'PostgreSQL knew no running worker: silence of devices counts from now on.',
      });
    }
    const settledTime = this.#seen.settledTime(now);
    const { timeline } = this.#ended;
    if (!(await reportSettled(postgres, { writer: this.#writer, settledTime, now, timeline }))) {
      this.#ended.readAgain();
      return;
    }
    this.#reportedMs = monotonic;
    this.#settledTime = settledTime;
  }

  /** Logs a failure, which the next round repeats. An unavailable database and a lost race are expected failures. */
  #report(event: string, error: unknown): void {
    const isExpected = error instanceof Fault || isLostRace(error);
    this.#deps.log[isExpected ? 'warn' : 'error'](event, { reason: messageOf(error) });
  }
}
