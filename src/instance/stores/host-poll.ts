/**
 * Polls PostgreSQL once a second for all workers of this host, and sends the workers what there is to read
 * (`postgres/shared-poll.ts`). Runs in the primary. While PostgreSQL is unavailable there are no results, and the
 * workers poll by themselves.
 */
import { hostMonotonic } from '../../base/clock.ts';
import { messageOf } from '../../base/errors.ts';
import { limits } from '../../base/limits.ts';
import type { Log } from '../../base/log.ts';
import { type Scheduler, systemScheduler } from '../../base/scheduler.ts';
import { isOtherHistory, placeAt, type Settled, settledOf } from '../../device/sql/credential-log-store.ts';
import type { Queries } from '../../postgres/client.ts';
import { isAway } from '../../postgres/postgres-error.ts';
import { type Polled, type PollResult, polledKinds } from '../../postgres/shared-poll.ts';
import { pollStore } from './host-poll-store.ts';

interface HostPollDeps {
  postgres: Queries;
  log: Log;
  scheduler?: Scheduler;
  onResult: (result: PollResult) => void;
  /** `isOtherServer`: the server in use may lack what the one of the poll before had. */
  onNumber?: (lastDevice: number, isOtherServer: boolean) => void;
}

/** Pause between two polls of a slow PostgreSQL. */
const pauseMsMin = limits.hostPollMs / 10;

export class HostPoll {
  readonly #deps: HostPollDeps;
  #number = 0;
  /** The results of the last poll; undefined before the first one. */
  #last: { settled: Settled; ended: number; tenantLimits: number; shardMap: number | null } | undefined;
  /** Stops the timer of the next poll. */
  #stopTimer = () => {};
  #polling: Promise<void> = Promise.resolve();
  #stopped = false;

  constructor(deps: HostPollDeps) {
    this.#deps = deps;
  }

  /** Called when PostgreSQL has the tables of this version. */
  start(): void {
    const startedAt = hostMonotonic();
    this.#polling = this.#poll().finally(() => {
      if (this.#stopped) return;
      // The time of a slow answer counts, because workers that miss a result read by themselves.
      const waitMs = limits.hostPollMs - (hostMonotonic() - startedAt);
      const { scheduler = systemScheduler } = this.#deps;
      this.#stopTimer = scheduler.after(Math.max(pauseMsMin, waitMs), () => this.start());
    });
  }

  async stop(): Promise<void> {
    this.#stopped = true;
    this.#stopTimer();
    await this.#polling;
  }

  async #poll(): Promise<void> {
    const { postgres, log, onResult, onNumber } = this.#deps;
    const at = hostMonotonic();
    try {
      const row = await pollStore(postgres, this.#last?.settled ?? placeAt(0n));
      const now = { ...row, settled: settledOf(row) };
      const last = this.#last;
      const isOther = last === undefined || isOtherHistory(now.settled, last.settled);
      const isFound = (kind: Polled) =>
        kind === 'ended' || kind === 'tenantLimits' || kind === 'shardMap' ? row[kind] !== last?.[kind] : row[kind];
      this.#last = now;
      this.#number += 1;
      if (row.lastDevice !== null) onNumber?.(row.lastDevice, isOther && last !== undefined);
      onResult({ number: this.#number, at, found: polledKinds.filter((kind) => isOther || isFound(kind)) });
    } catch (error) {
      if (!isAway(error)) log.warn('host_poll_failed', { reason: messageOf(error) });
    }
  }
}
