/**
 * Device credentials, emails and provisioning keys are unique over all tenants, so the refusal of a taken one shows
 * that another tenant has it. A tenant that meets too many of them is refused for a while before any lookup, and so
 * cannot guess tokens of other tenants. Names of the own tenant are not counted. Each worker counts separately.
 */
import type { Clock } from '../base/clock.ts';
import { Fault } from '../base/errors.ts';
import { FifoMap } from '../base/fifo-map.ts';
import { limits } from '../base/limits.ts';
import type { Log } from '../base/log.ts';
import type { Counter, Metrics } from '../base/metrics.ts';

interface Window {
  met: number;
  /** Monotonic milliseconds. */
  endsMs: number;
}

export class TakenNames {
  readonly #clock: Clock;
  readonly #log: Log;
  readonly #refused: Counter;
  /** Key: the tenant, or the profile through which devices provision themselves. */
  readonly #windows = new FifoMap<string, Window>(limits.takenNamesOwnersMax);

  constructor({ clock, log, metrics }: { clock: Clock; log: Log; metrics: Metrics }) {
    this.#clock = clock;
    this.#log = log;
    this.#refused = metrics.counter(
      'taken_names_refused_total',
      'Calls that chose credentials, an email or a key, refused because too many of them belonged to other tenants.',
    );
  }

  /** Returns how many names of other tenants the owner may still meet. */
  left(owner: string): number {
    return Math.max(0, limits.takenNamesMax - (this.#window(owner)?.met ?? 0));
  }

  /** Throws 429 when the owner may meet no more names of other tenants. */
  admit(owner: string): void {
    if (this.left(owner) === 0) throw this.refusal(owner);
  }

  refusal(owner: string): Fault {
    this.#refused.add(1);
    const endsMs = this.#window(owner)?.endsMs ?? 0;
    const seconds = Math.max(1, Math.ceil((endsMs - this.#clock.monotonic()) / 1000));
    const message =
      'Too many of the chosen credentials, emails or keys could not be used: leave them out to get random ones, or try again later.';
    return new Fault('taken_names', message, seconds);
  }

  /** Counts names that the owner chose and another tenant has. */
  met(owner: string, count: number): void {
    if (count === 0) return;
    let window = this.#window(owner);
    if (!window) this.#windows.set(owner, (window = { met: 0, endsMs: this.#clock.monotonic() + limits.takenNamesMs }));
    const isFirst = window.met < limits.takenNamesMax;
    window.met += count;
    if (isFirst && window.met >= limits.takenNamesMax) this.#log.warn('taken_names', { owner });
  }

  #window(owner: string): Window | undefined {
    const window = this.#windows.get(owner);
    if (!window || window.endsMs > this.#clock.monotonic()) return window;
    this.#windows.delete(owner);
    return undefined;
  }
}

const takenReasons = new Set(['credentials_taken', 'email_taken', 'provision_key_taken']);

/** Runs `work`, which chooses a name. After a refusal `isOthers` finds out whether another tenant has the name. */
export async function choosing<T>(
  takenNames: TakenNames | undefined,
  owner: string | null,
  isOthers: () => Promise<boolean>,
  work: () => Promise<T>,
): Promise<T> {
  // A system administrator sees all tenants.
  if (!takenNames || owner === null) return await work();
  takenNames.admit(owner);
  try {
    return await work();
  } catch (error) {
    const isTaken = error instanceof Fault && takenReasons.has(error.reason);
    if (isTaken && (await isOthers())) takenNames.met(owner, 1);
    throw error;
  }
}
