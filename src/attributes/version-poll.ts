/**
 * Reads which devices have new versions of their shared attributes, when the poll of the host found some. The bus
 * delivers the same versions at most once; this poll makes the delivery certain. A read takes all transactions that
 * the last read did not see, as credential-changes.ts does: a version that becomes visible late is not missed.
 */
import type { Clock } from '../base/clock.ts';
import { messageOf } from '../base/errors.ts';
import { limits } from '../base/limits.ts';
import type { Log } from '../base/log.ts';
import type { Scheduler } from '../base/scheduler.ts';
import { isOtherHistory, readSettled, type Settled } from '../device/sql/credential-log-store.ts';
import type { Queries } from '../postgres/client.ts';
import { isAway } from '../postgres/postgres-error.ts';
import { type OnPoll, SharedPoll } from '../postgres/shared-poll.ts';
import { readChangedHeads } from './update-store.ts';

interface VersionPollDeps {
  postgres: Queries;
  clock: Clock;
  scheduler: Scheduler;
  log: Log;
  onVersion: (device: number, version: number) => void;
  onPoll?: OnPoll | undefined;
}

export class VersionPoll {
  readonly #deps: VersionPollDeps;
  #onOverflow: () => void = () => {};
  /** Undefined until the first answer of the store. */
  #settled: Settled | undefined;
  #polledMs = 0;
  readonly #poll: SharedPoll;

  constructor(deps: VersionPollDeps) {
    this.#deps = deps;
    this.#poll = new SharedPoll(
      {
        kind: 'heads',
        clock: deps.clock,
        scheduler: deps.scheduler,
        read: () => this.#read(),
        onNothing: (at) => {
          this.#polledMs = Math.max(this.#polledMs, at);
        },
      },
      deps.onPoll,
    );
  }

  /** True when every version up to a moment ago was passed on. */
  get isFresh(): boolean {
    return this.#settled !== undefined && this.#deps.clock.monotonic() - this.#polledMs < 3 * limits.hostPollMs;
  }

  /** `onOverflow` is called when more versions may be new than can be passed on separately. */
  start(onOverflow: () => void): void {
    this.#onOverflow = onOverflow;
    void this.#poll.start();
  }

  async stop(): Promise<void> {
    await this.#poll.stop();
  }

  /** Returns false when the store did not answer. */
  async #read(): Promise<boolean> {
    const { postgres, clock, log, onVersion } = this.#deps;
    const now = clock.monotonic();
    try {
      const settled = await readSettled(postgres);
      const last = this.#settled;
      // A follower may have read the store before the first answer, and the bus may have lost a later version.
      if (last === undefined || isOtherHistory(settled, last)) this.#onOverflow();
      else {
        const heads = await readChangedHeads(postgres, last, limits.updateHeadsRowsMax);
        if (heads.length === limits.updateHeadsRowsMax) this.#onOverflow();
        else for (const { device, version } of heads) onVersion(device, version);
      }
      this.#settled = settled;
      this.#polledMs = Math.max(this.#polledMs, now);
      return true;
    } catch (error) {
      if (!isAway(error)) log.warn('attribute_heads_unread', { reason: messageOf(error) });
      return false;
    }
  }
}
