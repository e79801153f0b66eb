/**
 * A device of a world that sends twice its rate limit, when no fault is left: all workers together accept what the
 * limit allows, and no less.
 */
import { Fault } from '../../src/base/errors.ts';
import type { Random } from '../harness/random.ts';
import { messagesPerSecond, type Rooms } from './rooms.ts';
import type { VirtualTime } from './virtual-time.ts';

/** The time until all workers know each other's counts, and the time that is measured after it. */
const [warmMs, measuredMs] = [1_500, 3_000];

export class LimitedSender {
  readonly #number: number;
  readonly #isAnywhere: boolean;
  readonly #time: VirtualTime;
  readonly #random: Random;
  #accepted = 0;

  /** `isAnywhere`: each message goes to any of the workers, as behind a balancer. */
  constructor({ number, isAnywhere }: { number: number; isAnywhere: boolean }, time: VirtualTime, random: Random) {
    this.#number = number;
    this.#isAnywhere = isAnywhere;
    this.#time = time;
    this.#random = random;
  }

  async send(serving: () => Rooms[]): Promise<void> {
    const began = this.#time.passed;
    const [only] = serving();
    while (this.#time.passed - began < warmMs + measuredMs) {
      await this.#time.sleep(this.#random.between(0, 1000 / messagesPerSecond));
      const workers = serving();
      const rooms = this.#isAnywhere ? this.#random.pick(workers) : only!;
      const isAccepted = accepts(rooms, this.#number);
      if (isAccepted && this.#time.passed - began > warmMs) this.#accepted += 1;
    }
  }

  faults(): string[] {
    const allowed = (messagesPerSecond * measuredMs) / 1000;
    const isFair = this.#accepted > 0.8 * allowed && this.#accepted < 1.25 * allowed;
    const sent = this.#isAnywhere ? 'to all workers' : 'to one worker';
    if (isFair) return [];
    return [`device ${this.#number} (${sent}): ${this.#accepted} messages accepted, and its limit is ${allowed}`];
  }
}

function accepts({ rateLimits }: Rooms, number: number): boolean {
  try {
    rateLimits.message({ number, tenantId: 'mill' });
    return true;
  } catch (error) {
    if (!(error instanceof Fault)) throw error;
    return false;
  }
}
