/**
 * Whether devices are active. Each operation of a device is noted in memory (`SeenTimes`). Twice a second devices that woke
 * up are written as active, and blocks whose turn it is are written with the last activity of 512 devices each, so
 * devices that go on sending cost no row each. Silence is judged from what is stored (`Silence`), and only up to the time
 * before which every worker of every host has stored all that it received. While the database is unavailable everything
 * is kept and no device becomes inactive.
 */
import { randomUUID } from 'node:crypto';
import { type Clock, clockStepMs } from '../base/clock.ts';
import { Fault, messageOf } from '../base/errors.ts';
import { limits } from '../base/limits.ts';
import type { Log } from '../base/log.ts';
import type { CachedDevice } from '../device/cached-device.ts';
import { isLostRace, type Postgres } from '../postgres/client.ts';
import {
  type ActivityMark,
  forgetWriter,
  raiseFloor,
  readEnded,
  recordMarks,
  reportSettled,
} from './activity-store.ts';
import { readBlocks, replaceBlocks } from './block-store.ts';
import { mergeTimes } from './blocks.ts';
import { type SeenBlock, SeenTimes } from './seen-times.ts';
import { Silence } from './silence.ts';
import { lastDevice, readActiveNumbers } from './silence-store.ts';

export interface ActivityDeps {
  postgres: Postgres;
  clock: Clock;
  log: Log;
  /** Silence after which a device without a server attribute `inactivityTimeout` is inactive. */
  inactivityMs: number;
  /** 0 = this worker leaves looking for silence to others. */
  checkMs: number;
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
  #sessions = new Map<number, SessionTimes>();
  /** Blocks that could not be written in their turn. */
  readonly #overdue = new Set<SeenBlock>();
  #timer: NodeJS.Timeout | undefined;
  #running: Promise<void> = Promise.resolve();
  #checking: Promise<void> | undefined;
  #stopped = false;
  /** A block has one turn in so many rounds: how far the stored time of a device that goes on sending may be behind. */
  readonly #turns: number;
  /** Workers begin at different turns, so that they seldom meet at a block. */
  #round = Math.floor(Math.random() * 1_000);
  /** This process, in `activity_writer`. */
  readonly #writer = randomUUID();
  #reportedMs = Number.NEGATIVE_INFINITY;
  /** What was reported last: all that was received before this time is stored. */
  #settledTime = 0;
  /** The last of `activity_ended` that is known here. */
  #ended: number | undefined;
  /** Active devices below this number are known here; undefined = all are. */
  #loaded: number | undefined = 0;
  /** The clock less the monotonic clock. */
  #shift: number;

  constructor(deps: ActivityDeps) {
    this.#deps = deps;
    const steadyMs = Math.min(limits.activitySteadyMsMax, deps.inactivityMs / 20);
    this.#turns = Math.max(1, Math.floor(steadyMs / limits.activityWriteMs));
    this.#silence = deps.checkMs === 0 ? undefined : new Silence(deps);
    this.#shift = deps.clock.now() - deps.clock.monotonic();
  }

  /** Notes an activity. On the hot path: a block is looked up and a time assigned. `now` saves a reading of the clock. */
  readonly touch = (device: CachedDevice, now: number = this.#deps.clock.now()): void => {
    this.#seen.note(device.number, now);
  };

  /** A session of the device began; HTTP has none. */
  connected(device: CachedDevice): void {
    const now = this.#deps.clock.now();
    this.touch(device, now);
    this.#session(device.number).connectTs = now;
  }

  /** The last session of the device ended, which is no activity. */
  disconnected(device: CachedDevice): void {
    this.#session(device.number).disconnectTs = this.#deps.clock.now();
  }

  start(): void {
    this.#schedule();
  }

  /** Writes all that is noted, once. */
  async stop(): Promise<void> {
    this.#stopped = true;
    clearTimeout(this.#timer);
    this.#silence?.stop();
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

  /** Once: what woke up and the blocks whose turn it is are written, and a check begins when it is time for one. */
  async round(): Promise<void> {
    this.#round += 1;
    try {
      await this.#noticeStep();
      await this.#applyEnded();
      if (this.#loaded !== undefined) this.#loaded = await this.#loadActive(this.#loaded);
      const due = this.#seen.takeDue(this.#round % this.#turns, this.#turns, limits.activityIdleTurnsMax);
      for (const block of due) this.#overdue.add(block);
      await this.#writeMarks();
      await this.#writeBlocks([...this.#overdue]);
      await this.#reportSettled();
    } catch (error) {
      this.#report('activity_unwritten', error);
      return;
    }
    // A check of a large fleet takes longer than a round may.
    this.#checking ??= this.#silence
      ?.checkWhenDue()
      .catch((error: unknown) => this.#report('inactivity_unchecked', error))
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

  /** The next round begins when this one is done: a slow database makes rounds longer, not more. */
  #schedule(): void {
    if (this.#stopped) return;
    this.#timer = setTimeout(() => {
      this.#running = this.round().finally(() => this.#schedule());
    }, limits.activityWriteMs);
  }

  /** Before this worker reports by a clock that has jumped: times that were noted before say nothing about silence. */
  async #noticeStep(): Promise<void> {
    const { clock, postgres, log } = this.#deps;
    const shift = clock.now() - clock.monotonic();
    const stepMs = Math.round(shift - this.#shift);
    if (Math.abs(stepMs) <= clockStepMs) {
      this.#shift = shift;
      return;
    }
    await raiseFloor(postgres, clock.now());
    this.#seen.clamp(clock.now());
    this.#shift = shift;
    log.warn('activity_held', { reason: 'The clock jumped: silence counts from now on.', stepMs });
  }

  /** Devices that became inactive are no longer known as active: their next message wakes them. */
  async #applyEnded(): Promise<void> {
    const { postgres, clock, inactivityMs } = this.#deps;
    for (;;) {
      const { last, ended } = await readEnded(postgres, this.#ended, limits.activityEndedRowsMax);
      const next = this.#ended === undefined ? last : this.#ended + ended.length;
      const isWhole = ended.every(({ number }, n) => number === this.#ended! + n + 1) && next <= last;
      if (!isWhole || (ended.length === 0 && next < last)) {
        // Pruned, or another database: devices that sent lately ask the store again whether they are active.
        this.#seen.forgetActive(clock.now() - inactivityMs);
        this.#ended = last;
        return;
      }
      // A worker that was taken for dead was judged without what it has not reported yet.
      for (const { devices, judgedTime } of ended) {
        this.#seen.ended(devices, Math.min(judgedTime, this.#settledTime));
      }
      this.#ended = next;
      if (next === last) return;
    }
  }

  /** Some pages a round, so that a worker that starts asks for few devices one by one. Returns where to go on. */
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

  async #writeMarks(): Promise<void> {
    const marks = this.#takeMarks();
    for (let i = 0; i < marks.length; i += limits.activityRowsMax) {
      try {
        await recordMarks(this.#deps.postgres, marks.slice(i, i + limits.activityRowsMax));
      } catch (error) {
        this.#keepMarks(marks.slice(i));
        throw error;
      }
    }
  }

  #takeMarks(): ActivityMark[] {
    const marks = new Map<number, ActivityMark>();
    const now = this.#deps.clock.now();
    for (const device of this.#seen.takeWoken()) {
      const activeTs = Math.min(this.#seen.timeOf(device), now);
      marks.set(device, { device, activeTs, connectTs: 0, disconnectTs: 0 });
    }
    for (const [device, session] of this.#sessions) {
      marks.set(device, { device, activeTs: 0, ...marks.get(device), ...session });
    }
    this.#sessions = new Map();
    return [...marks.values()];
  }

  /** What could not be written waits for the next round, unless something newer does already. */
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
    }
  }

  async #writeSome(blocks: SeenBlock[]): Promise<void> {
    const { postgres, clock } = this.#deps;
    let left = new Map(blocks.map((seen) => [seen.block, seen]));
    while (left.size > 0) {
      const stored = await readBlocks(postgres, [...left.keys()]);
      // What is noted from here on is written in the next turn.
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

  async #reportSettled(): Promise<void> {
    const { postgres, clock } = this.#deps;
    const monotonic = clock.monotonic();
    const everyMs = Math.min(limits.activityReportMs, this.#turns * limits.activityWriteMs);
    if (monotonic - this.#reportedMs < everyMs) return;
    const now = clock.now();
    const settled = this.#seen.settledTime(now);
    await reportSettled(postgres, this.#writer, settled, now);
    this.#reportedMs = monotonic;
    this.#settledTime = settled;
  }

  /** A database that is unavailable is expected, and so is a lost race; other errors are not, and are tried again too. */
  #report(event: string, error: unknown): void {
    const isExpected = error instanceof Fault || isLostRace(error);
    this.#deps.log[isExpected ? 'warn' : 'error'](event, { reason: messageOf(error) });
  }
}
