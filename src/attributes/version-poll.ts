/**
 * Asks the store once a second which devices have new versions of their shared attributes. The bus told it before, at
 * most once; this makes it certain. It goes by transactions, as credential-changes.ts does: whatever was not settled at
 * the last look is looked at again, so a version that becomes visible late is not missed.
 */
import type { Clock } from '../base/clock.ts';
import { messageOf } from '../base/errors.ts';
import { limits } from '../base/limits.ts';
import type { Log } from '../base/log.ts';
import { settledTransaction } from '../device/store.ts';
import type { Queries } from '../postgres/client.ts';
import { readChangedHeads } from './store.ts';

export interface ChangedHeadsDeps {
  postgres: Queries;
  clock: Clock;
  log: Log;
  onVersion: (device: number, version: number) => void;
}

export class ChangedHeads {
  readonly #deps: ChangedHeadsDeps;
  #onOverflow: () => void = () => {};
  /** Undefined until the store has answered once. */
  #settled: bigint | undefined;
  #lookedMs = 0;
  #timer: NodeJS.Timeout | undefined;
  #looking: Promise<void> | undefined;
  #stopped = false;

  constructor(deps: ChangedHeadsDeps) {
    this.#deps = deps;
  }

  /** Every version up to a moment ago was handed over. */
  get isFresh(): boolean {
    return this.#settled !== undefined && this.#deps.clock.monotonic() - this.#lookedMs < 3 * limits.updatePollMs;
  }

  /** `onOverflow`: more versions are new than can be handed over one by one. */
  start(onOverflow: () => void): void {
    this.#onOverflow = onOverflow;
    this.#schedule(0);
  }

  async stop(): Promise<void> {
    this.#stopped = true;
    clearTimeout(this.#timer);
    await this.#looking;
  }

  #schedule(waitMs: number): void {
    if (this.#stopped) return;
    this.#timer = setTimeout(() => {
      this.#looking = this.#look().finally(() => this.#schedule(limits.updatePollMs));
    }, waitMs);
  }

  async #look(): Promise<void> {
    const { postgres, clock, log, onVersion } = this.#deps;
    const now = clock.monotonic();
    try {
      const settled = await settledTransaction(postgres);
      if (this.#settled !== undefined) {
        const heads = await readChangedHeads(postgres, this.#settled, limits.updateHeadsRowsMax);
        // A store that went back in time was restored, or another server took over.
        if (heads.length === limits.updateHeadsRowsMax || settled < this.#settled) this.#onOverflow();
        else for (const { device, version } of heads) onVersion(device, version);
      }
      this.#settled = settled;
      this.#lookedMs = now;
    } catch (error) {
      log.warn('attribute_heads_unread', { reason: messageOf(error) });
    }
  }
}
