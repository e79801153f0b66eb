/**
 * Finds devices that were silent for their inactivity time, and makes them inactive. One worker of all hosts checks at
 * a time. Silence is judged up to the time before which all workers have stored what they received. Silence before the
 * floor does not count. The floor moves to the present when a worker died with unwritten activity, when nothing was
 * checked for some time, and after a jump of the clock.
 */
import { type Clock, clockStepMs } from '../base/clock.ts';
import { limits } from '../base/limits.ts';
import type { Log } from '../base/log.ts';
import type { Postgres } from '../postgres/client.ts';
import { databaseMs } from '../postgres/clock.ts';
import { readBlocksFrom, replaceBlocks } from './block-store.ts';
import { blockDevices, blockOf, mergeTimes, placeOf, timeAt } from './blocks.ts';
import {
  type ActiveDevice,
  type CheckTurn,
  clampTimes,
  endActivity,
  lastDevice,
  readTimeouts,
  readWoken,
  takeCheckTurn,
} from './silence-store.ts';

interface SilenceDeps {
  postgres: Postgres;
  clock: Clock;
  log: Log;
  inactivityMs: number;
  checkMs: number;
  databaseTime?: () => Promise<number>;
}

const reasons: Record<Exclude<CheckTurn['held'], undefined>, string> = {
  gap: 'Nothing was checked for a while, in which devices may have had no host to send to: silence counts from now on.',
  back: 'The clock went back: silence counts from now on.',
  lost_worker: 'A worker ended without writing what it knew: silence counts from now on.',
};

const otherTime =
  'The clock of this host is neither that of the database nor that of the last check: this host judges no silence.';

export class Silence {
  readonly #deps: SilenceDeps;
  #checkedMs: number;
  /**
   * By block: the marks of the devices that were read as inactive; 0 = no mark. A device whose block has another time
   * now is read again. The block of a device that wakes up is written soon, unless its worker dies. All devices are
   * read again after such a death, and every ten minutes.
   */
  readonly #inactive = new Map<number, Uint32Array>();
  #readAllMs: number;
  /** The floor of the last check: a move shows what any host noticed, such as a death. */
  #floorTime: number | undefined;
  /** True when the last turn was left because of the clock of this host. */
  #hasOtherTime = false;
  #stopped = false;

  constructor(deps: SilenceDeps) {
    this.#deps = deps;
    this.#checkedMs = deps.clock.monotonic();
    this.#readAllMs = this.#checkedMs;
  }

  async checkWhenDue(): Promise<void> {
    const { clock, checkMs } = this.#deps;
    if (clock.monotonic() - this.#checkedMs < checkMs) return;
    this.#checkedMs = clock.monotonic();
    await this.check();
  }

  /** Ends a running check after its present page. */
  stop(): void {
    this.#stopped = true;
  }

  /** Returns how many devices became inactive. */
  async check(): Promise<number> {
    const { postgres, clock, log, inactivityMs, checkMs } = this.#deps;
    const database = await (this.#deps.databaseTime?.() ?? databaseMs(postgres, limits.activityClockMsMax));
    const now = clock.now();
    const deadMs = Math.max(limits.activityDeadMsMin, Math.min(limits.activityDeadMsMax, inactivityMs));
    // A check that is due slightly early is made, so that hosts that check in turn do not skip one.
    const everyMs = checkMs * 0.9;
    const steadyMs = 2 * checkMs;
    const times = { now, database, steadyMs, everyMs, deadMs, gapMs: steadyMs + deadMs, toleranceMs: clockStepMs };
    const turn = await takeCheckTurn(postgres, times);
    if (turn === undefined) return 0;
    if (turn === 'other_time') {
      if (!this.#hasOtherTime) log.warn('activity_held', { reason: otherTime });
      this.#hasOtherTime = true;
      return 0;
    }
    this.#hasOtherTime = false;
    if (turn.held !== undefined)
      log[turn.held === 'gap' ? 'info' : 'warn']('activity_held', { reason: reasons[turn.held] });
    if (turn.held === 'back') await clampTimes(postgres, now, clockStepMs);
    if (turn.floorTime !== this.#floorTime || clock.monotonic() - this.#readAllMs > limits.activityReadAllMs) {
      this.#floorTime = turn.floorTime;
      this.#inactive.clear();
      this.#readAllMs = clock.monotonic();
    }
    return await this.#judgeAll(turn);
  }

  async #judgeAll({ settledTime, floorTime, held }: CheckTurn): Promise<number> {
    const { postgres, clock } = this.#deps;
    // A message may be noted slightly after its time.
    const judgedTime = settledTime - limits.activityLateMs;
    const last = floorTime >= judgedTime && held !== 'back' ? -1 : await lastDevice(postgres);
    let count = 0;
    for (let first = 0; first <= last && !this.#stopped; first += limits.activityPageDevices) {
      const due = await this.#silentIn(first, { judgedTime, floorTime, isBack: held === 'back' });
      for (let i = 0; i < due.length && !this.#stopped; i += limits.activityRowsMax) {
        const judgement = { floorTime, judgedTime, now: clock.now(), keptMax: limits.activityEndedKeptMax };
        const ended = await endActivity(postgres, due.slice(i, i + limits.activityRowsMax), judgement);
        if (ended === undefined) return count;
        count += ended.length;
      }
    }
    return count;
  }

  async #silentIn(first: number, { judgedTime, floorTime, isBack }: Judged): Promise<ActiveDevice[]> {
    const { postgres, clock, inactivityMs } = this.#deps;
    const pageDevices: number = limits.activityPageDevices;
    const timeouts = await readTimeouts(postgres, first, pageDevices);
    const stored = await readBlocksFrom(postgres, blockOf(first), pageDevices / blockDevices);
    if (isBack) {
      const ahead = stored.filter(({ times }) => mergeTimes(times, undefined, clock.now()));
      if (ahead.length > 0) await replaceBlocks(postgres, ahead);
    }
    const blocks = new Map(stored.map(({ block, times }) => [block, times]));
    const isSilent = (device: number, time: number) =>
      Math.max(time, floorTime) < judgedTime - (timeouts.get(device) || inactivityMs);
    const timeOf = (device: number) => {
      const times = blocks.get(blockOf(device));
      return times === undefined ? 0 : timeAt(times, placeOf(device));
    };
    const silent: number[] = [];
    for (let device = first; device < first + pageDevices; device += blockDevices) {
      const times = blocks.get(blockOf(device));
      const inactive = this.#inactiveIn(blockOf(device));
      for (let place = 0; place < blockDevices; place += 1) {
        const time = times === undefined ? 0 : timeAt(times, place);
        if (!isSilent(device + place, time)) inactive[place] = 0;
        else if (inactive[place] !== markOf(time)) silent.push(device + place);
      }
    }
    if (silent.length === 0) return [];
    const woken = await readWoken(postgres, silent, first, pageDevices);
    const due: ActiveDevice[] = [];
    for (const device of silent) {
      const wokeTime = woken.get(device);
      if (wokeTime === undefined) this.#inactiveIn(blockOf(device))[placeOf(device)] = markOf(timeOf(device));
      else if (isSilent(device, wokeTime)) due.push({ device, wokeTime });
    }
    return due;
  }

  #inactiveIn(block: number): Uint32Array {
    let inactive = this.#inactive.get(block);
    if (inactive === undefined) {
      inactive = new Uint32Array(blockDevices);
      this.#inactive.set(block, inactive);
    }
    return inactive;
  }
}

/** Returns the mark of a device whose last activity in its block is `time`: the lower half of the time, never 0. */
function markOf(time: number): number {
  return time >>> 0 || 1;
}

interface Judged {
  judgedTime: number;
  floorTime: number;
  isBack: boolean;
}
