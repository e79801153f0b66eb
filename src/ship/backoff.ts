/**
 * The wait of one lane after a failed insert. The wait doubles up to half a minute, half of it random, and starts again
 * after a success. An answer to `/ping` ends a wait early only when the last error was a missing answer: a store that
 * answers and refuses (too many parts, no space) needs the pause.
 */
import type { Clock } from '../base/clock.ts';
import type { Sleep } from '../base/scheduler.ts';
import type { ClickHouse } from '../clickhouse/client.ts';

interface BackoffDeps {
  clickhouse: Pick<ClickHouse, 'ping'>;
  clock: Clock;
  sleep: Sleep;
}

/**
 * With these pauses the attempts at a refusing store begin at 0, 0.5, 1.5, 3.5, 7.5, 15.5, 30.5, 45.5 s at the
 * earliest.
 */
const waitMsFirst = 1_000;
export const waitMsMax = 30_000;
const pingMs = 200;

export class Backoff {
  readonly #deps: BackoffDeps;
  #failures = 0;

  constructor(deps: BackoffDeps) {
    this.#deps = deps;
  }

  succeeded(): void {
    this.#failures = 0;
  }

  /** `mayEndEarly`: the store did not answer, and the insert is unlikely to be the cause. */
  async wait(signal: AbortSignal, { mayEndEarly }: { mayEndEarly: boolean }): Promise<void> {
    const { clickhouse, clock, sleep: pause } = this.#deps;
    const most = Math.min(waitMsMax, waitMsFirst * 2 ** Math.min(this.#failures, 10));
    this.#failures += 1;
    const waitMs = most / 2 + (Math.random() * most) / 2;
    if (!mayEndEarly) return pause(waitMs, signal);
    const until = clock.monotonic() + waitMs;
    while (clock.monotonic() < until && !signal.aborted) {
      await pause(Math.min(pingMs, Math.max(1, until - clock.monotonic())), signal);
      if (await clickhouse.ping()) return;
    }
  }

  /** Waits after an insert that crashed the store: a further attempt is useful only when the store runs again. */
  async untilAnswered(signal: AbortSignal): Promise<void> {
    const { clickhouse } = this.#deps;
    do await this.wait(signal, { mayEndEarly: true });
    while (!signal.aborted && !(await clickhouse.ping()));
  }
}
