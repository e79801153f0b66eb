/**
 * Device credentials, emails and provisioning keys are unique over all tenants, so the refusal of a taken one shows
 * that another tenant has it. A tenant that meets `takenNamesMax` of them is refused for a while, for free and taken
 * names alike, and so cannot guess tokens of other tenants. Names of the own tenant are not counted.
 *
 * The counts are rows of PostgreSQL, so they are exact for parallel calls at all workers and hosts: a taken name is
 * counted before its answer is given, and a free one is checked again inside the transaction that takes it. Both get
 * 429 once the count is full, so a refusal does not distinguish a taken name from a free one. Windows end by the clock
 * of the host that asks.
 */
import type { Clock } from '../base/clock.ts';
import { Fault } from '../base/errors.ts';
import { limits } from '../base/limits.ts';
import type { Log } from '../base/log.ts';
import type { Counter, Metrics } from '../base/metrics/metrics.ts';
import type { Queries } from '../postgres/client.ts';
import { countTries, findTries } from './tries-store.ts';

export class TakenNames {
  readonly #clock: Clock;
  readonly #log: Log;
  readonly #refused: Counter;

  constructor({ clock, log, metrics }: { clock: Clock; log: Log; metrics: Metrics }) {
    this.#clock = clock;
    this.#log = log;
    this.#refused = metrics.counter(
      'taken_names_refused_total',
      'Calls that chose credentials, an email or a key, refused because their tenant met too many of other tenants.',
    );
  }

  /** Throws 429 when the owner, a tenant or a profile, may meet no more names of other tenants. */
  async admit(queries: Queries, owner: string): Promise<void> {
    const { count, endsTime } = await findTries(queries, subjectOf(owner), this.#clock.now());
    if (count >= limits.takenNamesMax) throw this.refusal(endsTime);
  }

  /**
   * Counts names of other tenants that the owner chose. Returns how many of them, the first ones, may be answered as
   * taken, and when the window ends. Inside a transaction the calls of the owner at other workers wait for its end.
   */
  async count(queries: Queries, owner: string, names: number): Promise<{ remaining: number; endsTime: number }> {
    const now = this.#clock.now();
    const max = limits.takenNamesMax;
    const subject = subjectOf(owner);
    if (names === 0) {
      const { count, endsTime } = await findTries(queries, subject, now);
      return { remaining: Math.max(0, max - count), endsTime };
    }
    const { count, endsTime } = await countTries(queries, subject, names, now, limits.takenNamesMs);
    const before = count - names;
    const reason = 'it chose so many names of other tenants that the next ones are refused: 429 (taken_names)';
    if (before < max && count >= max) this.#log.warn('taken_names', { owner, names: count, reason });
    return { remaining: Math.max(0, max - before), endsTime };
  }

  refusal(endsTime: number): Fault {
    this.#refused.add(1);
    const seconds = Math.max(1, Math.ceil((endsTime - this.#clock.now()) / 1000));
    const message =
      'Too many of the chosen credentials, emails or keys could not be used: leave them out to get random ones, or try again later.';
    return new Fault('taken_names', message, seconds);
  }
}

/** Names what the tries of an owner are of, among other tries. */
function subjectOf(owner: string): string {
  return `names ${owner}`;
}

const takenReasons = new Set(['credentials_taken', 'email_taken', 'provision_key_taken']);

/** Throws 429 when the count became full since the call began. */
export type CheckAgain = (queries: Queries) => Promise<void>;

interface Choice {
  postgres: Queries;
  /** Absent where nothing is counted. */
  takenNames?: TakenNames;
}

/**
 * Runs `work`, which chooses a name and calls `checkAgain` as the last statement of its transaction. After a refusal
 * `isOthers` finds out whether another tenant has the name.
 */
export async function choosing<T>(
  { postgres, takenNames }: Choice,
  owner: string | null,
  isOthers: () => Promise<boolean>,
  work: (checkAgain: CheckAgain) => Promise<T>,
): Promise<T> {
  // A system administrator sees all tenants.
  if (!takenNames || owner === null) return await work(async () => {});
  await takenNames.admit(postgres, owner);
  try {
    return await work((queries) => takenNames.admit(queries, owner));
  } catch (error) {
    if (!(error instanceof Fault) || !takenReasons.has(error.reason)) throw error;
    const { remaining, endsTime } = await takenNames.count(postgres, owner, (await isOthers()) ? 1 : 0);
    throw remaining > 0 ? error : takenNames.refusal(endsTime);
  }
}
