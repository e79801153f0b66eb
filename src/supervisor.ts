/**
 * Keeps one child running: started again after it died, a little later each time, until it dies so often that only the
 * operator can help. The owner says how to start it and hears of the crash loop.
 */
import { messageOf } from './base/errors.ts';
import { limits } from './base/limits.ts';
import type { Log } from './base/log.ts';

export interface SupervisorOptions {
  name: string;
  log: Log;
  /** Starts the child again; a rejection counts as another death. */
  restart: () => Promise<void>;
  /** The child dies in a loop: the service must end with this reason. */
  onCrashLoop: (reason: string) => void;
}

export class Supervisor {
  readonly #options: SupervisorOptions;
  #quickDeaths = 0;
  #aliveSince = Number.POSITIVE_INFINITY;
  #stopped = false;

  constructor(options: SupervisorOptions) {
    this.#options = options;
  }

  /** The child is up and works. */
  up(): void {
    this.#aliveSince = performance.now();
  }

  /** The child is gone, for `reason`. A child that had worked for a while was killed from outside: no loop. */
  died(reason: string): void {
    if (this.#stopped) return;
    const { name, log, restart, onCrashLoop } = this.#options;
    const quick = performance.now() - this.#aliveSince < limits.crashLoopAliveMs;
    this.#quickDeaths = quick || this.#aliveSince === Number.POSITIVE_INFINITY ? this.#quickDeaths + 1 : 1;
    this.#aliveSince = Number.POSITIVE_INFINITY;
    log.error('child_died', { child: name, reason });
    if (this.#quickDeaths >= limits.crashLoopCount) {
      this.#stopped = true;
      onCrashLoop(`${name} ended ${this.#quickDeaths} times in a row right after its start: ${reason}`);
      return;
    }
    setTimeout(() => {
      if (this.#stopped) return;
      restart().catch((error: unknown) => this.died(messageOf(error)));
    }, limits.restartDelayMs * this.#quickDeaths);
  }

  stop(): void {
    this.#stopped = true;
  }
}
