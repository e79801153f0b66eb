/**
 * Keeps one child running: restarts it after each death. The pause grows while deaths follow each other quickly, up to
 * `restartDelayMsMax`, and restarts never end. The owner supplies the function that starts the child, and decides what
 * a crash loop means for the service. A death is logged once for each reason, not once for each try.
 */
import { messageOf } from '../../base/errors.ts';
import { limits } from '../../base/limits.ts';
import type { Log } from '../../base/log.ts';
import { systemScheduler } from '../../base/scheduler.ts';

interface SupervisorDeps {
  name: string;
  log: Log;
  /** Starts the child again; a rejection counts as another death. */
  restart: () => Promise<void>;
  /** Called at each death of a child in a crash loop. The supervisor continues. */
  onCrashLoop?: (reason: string) => void;
}

export class Supervisor {
  readonly #deps: SupervisorDeps;
  #quickDeaths = 0;
  #aliveSince = Number.POSITIVE_INFINITY;
  #downSince = 0;
  #failure: string | undefined;
  /** Stops the timer of the next start. */
  #stopTimer = () => {};
  #stopped = false;

  constructor(deps: SupervisorDeps) {
    this.#deps = deps;
  }

  /** The reason of the child's last death; undefined while it runs. */
  get failure(): string | undefined {
    return this.#failure;
  }

  /** True after so many quick deaths that the child will probably die again. */
  get looping(): boolean {
    return this.#quickDeaths >= limits.crashLoopCount && !this.#worked();
  }

  /** Called when the child is up and works. */
  up(): void {
    this.#aliveSince = performance.now();
    if (this.#failure === undefined) return;
    const { name, log } = this.#deps;
    log.info('child_back', { child: name, awayMs: Math.round(this.#aliveSince - this.#downSince) });
    this.#failure = undefined;
  }

  /**
   * Called when the child has ended, with the reason. The death of a child that had worked for a while begins no loop.
   */
  died(reason: string): void {
    if (this.#stopped) return;
    const { name, log, restart, onCrashLoop } = this.#deps;
    this.#quickDeaths = this.#worked() ? 1 : this.#quickDeaths + 1;
    this.#aliveSince = Number.POSITIVE_INFINITY;
    if (this.#failure === undefined) this.#downSince = performance.now();
    const level = this.#failure === reason ? 'debug' : 'error';
    this.#failure = reason;
    log[level]('child_died', { child: name, reason });
    if (this.looping)
      onCrashLoop?.(`${name} ended ${this.#quickDeaths} times in a row right after its start: ${reason}`);
    if (this.#stopped) return;
    const delayMs = Math.min(limits.restartDelayMs * 2 ** (this.#quickDeaths - 1), limits.restartDelayMsMax);
    this.#stopTimer = systemScheduler.after(delayMs, () => {
      restart().catch((error: unknown) => this.died(messageOf(error)));
    });
  }

  stop(): void {
    this.#stopped = true;
    this.#stopTimer();
  }

  #worked(): boolean {
    return performance.now() - this.#aliveSince >= limits.crashLoopAliveMs;
  }
}
