/**
 * Spaces the refusals of one caller. A caller that asks again at once after each refusal, and not after its
 * `Retry-After`, would otherwise take the CPU that the reports of others need. The first refusal leaves at once.
 */
import type { Clock } from '../base/clock.ts';
import { FifoMap } from '../base/fifo-map.ts';
import { limits } from '../base/limits.ts';
import { Places } from '../base/places.ts';
import { systemScheduler } from '../base/scheduler.ts';

export class PacedRefusals {
  readonly #clock: Clock;
  /** Time at which the next refusal of a caller may leave. */
  readonly #nextAt = new FifoMap<string, number>(limits.reportRefusalsHeldMax);
  readonly #held = new Places(limits.reportRefusalsHeldMax);

  constructor(clock: Clock) {
    this.#clock = clock;
  }

  /** Resolves when a refusal of `caller` may leave, or when its client has disconnected. */
  async wait(caller: string, gone: AbortSignal): Promise<void> {
    const now = this.#clock.monotonic();
    const dueAt = Math.max(now, this.#nextAt.get(caller) ?? 0);
    this.#nextAt.set(caller, Math.min(dueAt + limits.reportRefusalMs, now + limits.reportRefusalHeldMsMax));
    const owners = [{ name: caller, timesFree: 1 }];
    if (dueAt === now || this.#held.take(owners) !== 'taken') return;
    await systemScheduler.sleep(dueAt - now, gone);
    this.#held.release(owners);
  }
}
