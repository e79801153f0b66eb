/**
 * Reads which devices were judged inactive, by any worker of any host, so that their next message wakes them. Each
 * judgement has a number of `activity_ended`; `Activity` applies the later ones in each round.
 */
import type { Clock } from '../base/clock.ts';
import { limits } from '../base/limits.ts';
import type { Scheduler } from '../base/scheduler.ts';
import type { Postgres } from '../postgres/client.ts';
import { type OnPoll, SharedPoll } from '../postgres/shared-poll.ts';
import { readEnded } from './activity-store.ts';
import type { SeenTimes } from './seen-times.ts';

interface EndedDevicesDeps {
  postgres: Postgres;
  clock: Clock;
  scheduler?: Scheduler | undefined;
  onPoll?: OnPoll | undefined;
}

export class EndedDevices {
  readonly #deps: EndedDevicesDeps;
  readonly #seen: SeenTimes;
  /** The last number that this worker has read. */
  #last: number | undefined;
  /** The timeline of PostgreSQL that has given `#last`; undefined before the first read. */
  #timeline: string | null | undefined;
  /** True when there may be later numbers. */
  #mayHaveMore = true;
  /** Undefined: each round reads later numbers. */
  readonly #poll: SharedPoll | undefined;

  constructor(deps: EndedDevicesDeps, seen: SeenTimes) {
    this.#deps = deps;
    this.#seen = seen;
    const { clock, scheduler, onPoll } = deps;
    const read = async () => {
      this.#mayHaveMore = true;
      return true;
    };
    this.#poll = onPoll && new SharedPoll({ kind: 'ended', clock, scheduler, read }, onPoll);
  }

  start(): void {
    void this.#poll?.start();
  }

  async stop(): Promise<void> {
    await this.#poll?.stop();
  }

  get timeline(): string | null {
    return this.#timeline ?? null;
  }

  /** Called when PostgreSQL has another timeline than the one that was read: the next round reads again. */
  readAgain(): void {
    this.#mayHaveMore = true;
  }

  /** Applies the later judgements. `settledTime`: all activity of this worker before this time is stored. */
  async apply(settledTime: number): Promise<void> {
    if (!this.#poll) this.#mayHaveMore = true;
    while (this.#mayHaveMore) {
      this.#mayHaveMore = false;
      try {
        if (await this.#applySome(settledTime)) this.#mayHaveMore = true;
      } catch (error) {
        this.#mayHaveMore = true;
        throw error;
      }
    }
  }

  /** Returns true when there are later numbers. */
  async #applySome(settledTime: number): Promise<boolean> {
    const { postgres } = this.#deps;
    const { last, timeline, ended } = await readEnded(postgres, this.#last, limits.activityEndedRowsMax);
    const next = this.#last === undefined ? last : this.#last + ended.length;
    const isOther = this.#timeline !== undefined && timeline !== this.#timeline;
    this.#timeline = timeline;
    const isWhole = !isOther && ended.every(({ number }, n) => number === this.#last! + n + 1) && next <= last;
    if (!isWhole || (ended.length === 0 && next < last)) {
      // Numbers are missing or mean other judgements, because rows were pruned or the database is another one. A
      // judgement that is missing included all activity before the settled time. Another server may lack any activity.
      this.#seen.forgetActive(isOther ? 1 : Math.max(1, settledTime));
      this.#seen.forgetStored();
      this.#last = last;
      return false;
    }
    // The judgement does not include the activity that this worker had not reported when it counted as dead.
    for (const { devices, judgedTime } of ended) this.#seen.ended(devices, Math.min(judgedTime, settledTime));
    this.#last = next;
    return next < last;
  }
}
