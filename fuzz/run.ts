/** What every fuzzer is given, what it hands back, and how it prints. */
import { Random } from '../test/harness/random.ts';

export interface FuzzOptions {
  seed: number;
  cases: number;
  /** How long a neighbour of the attack may wait for an acknowledgement. */
  servedMsMax: number;
  /** How long a connection may wait for its end. */
  closedMsMax: number;
  /** Some connections are left for the engine to end, which takes its idle time. */
  isPatient: boolean;
}

export interface Report {
  /** One line for a person. */
  summary: string;
  /** Each with all that repeats it. */
  findings: string[];
}

/** More findings of one run say nothing new. */
export const findingsMax = 20;

export function say(line: string): void {
  process.stdout.write(`${line}\n`);
}

/** Runs the cases `atOnce` at a time; each case draws from its own seed. */
export async function runCases(
  { seed, cases }: FuzzOptions,
  atOnce: number,
  run: (random: Random, n: number) => Promise<void>,
  isEnough: () => boolean,
): Promise<void> {
  let next = 0;
  const loop = async () => {
    while (next < cases && !isEnough()) {
      const n = next;
      next += 1;
      await run(new Random((Math.imul(seed, 0x9e3779b1) + n) >>> 0), n);
    }
  };
  await Promise.all(Array.from({ length: atOnce }, loop));
}

/** Counts of words, the most frequent first: `200 × 17, 400 × 3`. */
export class Tally {
  readonly #counts = new Map<string, number>();

  add(word: string): void {
    this.#counts.set(word, (this.#counts.get(word) ?? 0) + 1);
  }

  toString(): string {
    return [...this.#counts]
      .sort(([, a], [, b]) => b - a)
      .map(([word, count]) => `${word} × ${count}`)
      .join(', ');
  }
}
