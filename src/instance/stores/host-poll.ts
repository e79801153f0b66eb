/**
 * Polls PostgreSQL once a second for all workers of this host, and tells the workers whether there is something to read
 * (`postgres/shared-poll.ts`). Runs in the primary. While PostgreSQL is unavailable there are no results, and the
 * workers poll by themselves.
 */
import { hostMonotonic } from '../../base/clock.ts';
import { messageOf } from '../../base/errors.ts';
import { limits } from '../../base/limits.ts';
import type { Log } from '../../base/log.ts';
import { isAway, type Queries } from '../../postgres/client.ts';
import { type Polled, type PollResult, polledKinds } from '../../postgres/shared-poll.ts';
import { pollStore } from './host-poll-store.ts';

interface HostPollDeps {
  postgres: Queries;
  log: Log;
  onResult: (result: PollResult) => void;
}

export class HostPoll {
  readonly #deps: HostPollDeps;
  #number = 0;
  /** Of the last poll; undefined before the first one. */
  #last: { settled: bigint; ended: number; tenantLimits: number } | undefined;
  #timer: NodeJS.Timeout | undefined;
  #polling: Promise<void> = Promise.resolve();
  #stopped = false;

  constructor(deps: HostPollDeps) {
    this.#deps = deps;
  }

  /** Called when PostgreSQL has the tables of this version. */
  start(): void {
    this.#polling = this.#poll().finally(() => {
      if (!this.#stopped) this.#timer = setTimeout(() => this.start(), limits.hostPollMs);
    });
  }

  async stop(): Promise<void> {
    this.#stopped = true;
    clearTimeout(this.#timer);
    await this.#polling;
  }

  async #poll(): Promise<void> {
    const { postgres, log, onResult } = this.#deps;
    const at = hostMonotonic();
    try {
      const row = await pollStore(postgres, String(this.#last?.settled ?? 0));
      const now = { ...row, settled: BigInt(row.settled) };
      const last = this.#last;
      // A transaction number that went back means a restored store or another server.
      const isOther = last === undefined || now.settled < last.settled;
      const isFound = (kind: Polled) =>
        kind === 'ended' || kind === 'tenantLimits' ? row[kind] !== last?.[kind] : row[kind];
      this.#last = now;
      this.#number += 1;
      onResult({ number: this.#number, at, found: polledKinds.filter((kind) => isOther || isFound(kind)) });
    } catch (error) {
      if (!isAway(error)) log.warn('host_poll', { reason: messageOf(error) });
    }
  }
}
