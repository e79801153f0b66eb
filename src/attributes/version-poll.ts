/**
 * Asks the store once a second which devices have new versions of their shared attributes. The bus delivers the same
 * versions at most once; this poll makes the delivery certain. A poll reads all transactions that were not settled at
 * the last poll, as credential-changes.ts does: a version that becomes visible late is not missed.
 */
import type { Clock } from '../base/clock.ts';
import { messageOf } from '../base/errors.ts';
import { limits } from '../base/limits.ts';
import type { Log } from '../base/log.ts';
import { settledTransaction } from '../device/sql/store.ts';
import { isAway, type Queries } from '../postgres/client.ts';
import { readChangedHeads } from './store.ts';

interface VersionPollDeps {
  postgres: Queries;
  clock: Clock;
  log: Log;
  onVersion: (device: number, version: number) => void;
}

export class VersionPoll {
  readonly #deps: VersionPollDeps;
  #onOverflow: () => void = () => {};
  /** Undefined until the first answer of the store. */
  #settled: bigint | undefined;
  #polledMs = 0;
  #timer: NodeJS.Timeout | undefined;
  #polling: Promise<void> | undefined;
  #stopped = false;

  constructor(deps: VersionPollDeps) {
    this.#deps = deps;
  }

  /** True when every version up to a moment ago was passed on. */
  get isFresh(): boolean {
    return this.#settled !== undefined && this.#deps.clock.monotonic() - this.#polledMs < 3 * limits.updatePollMs;
  }

  /** `onOverflow` is called when more versions are new than can be passed on separately. */
  start(onOverflow: () => void): void {
    this.#onOverflow = onOverflow;
    this.#schedule(0);
  }

  async stop(): Promise<void> {
    this.#stopped = true;
    clearTimeout(this.#timer);
    await this.#polling;
  }

  #schedule(waitMs: number): void {
    if (this.#stopped) return;
    this.#timer = setTimeout(() => {
      this.#polling = this.#poll().finally(() => this.#schedule(limits.updatePollMs));
    }, waitMs);
  }

  async #poll(): Promise<void> {
    const { postgres, clock, log, onVersion } = this.#deps;
    const now = clock.monotonic();
    try {
      const settled = await settledTransaction(postgres);
      if (this.#settled !== undefined) {
        const heads = await readChangedHeads(postgres, this.#settled, limits.updateHeadsRowsMax);
        // A transaction number that went back means a restored store or another server.
        if (heads.length === limits.updateHeadsRowsMax || settled < this.#settled) this.#onOverflow();
        else for (const { device, version } of heads) onVersion(device, version);
      }
      this.#settled = settled;
      this.#polledMs = now;
    } catch (error) {
      if (!isAway(error)) log.warn('attribute_heads_unread', { reason: messageOf(error) });
    }
  }
}
