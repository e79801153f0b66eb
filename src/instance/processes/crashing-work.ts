/**
 * Records the work that crashed workers. The primary keeps the record, which outlives restarts of workers and covers
 * this host only. Work (a route and its caller) that crashed two workers within ten minutes is refused for ten minutes,
 * so that one caller cannot crash one worker after another.
 */
import { limits } from '../../base/limits.ts';
import { type Work, workKey } from '../../base/running-work.ts';

export class CrashingWork {
  readonly #monotonic: () => number;
  /** Work → time of its last crash. */
  readonly #lastDeath = new Map<string, number>();
  readonly #blockedUntil = new Map<string, number>();

  constructor(monotonic: () => number = () => performance.now()) {
    this.#monotonic = monotonic;
  }

  /** Returns the work that is refused from now on because of this death. */
  add(suspects: readonly Work[]): string[] {
    const now = this.#monotonic();
    const newlyBlocked: string[] = [];
    for (const key of new Set(suspects.map(workKey))) {
      const last = this.#lastDeath.get(key);
      this.#lastDeath.delete(key);
      this.#lastDeath.set(key, now);
      if (last === undefined || now - last > limits.deathsWithinMs) continue;
      this.#blockedUntil.set(key, now + limits.deathsBlockMs);
      newlyBlocked.push(key);
    }
    // The oldest entries make room: an attacker with many names must not fill the memory.
    for (const [key] of this.#lastDeath) {
      if (this.#lastDeath.size <= limits.deathsKept) break;
      this.#lastDeath.delete(key);
    }
    return newlyBlocked;
  }

  get blocked(): string[] {
    const now = this.#monotonic();
    for (const [key, until] of this.#blockedUntil) if (until <= now) this.#blockedUntil.delete(key);
    return [...this.#blockedUntil.keys()];
  }
}
