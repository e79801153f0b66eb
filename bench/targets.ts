/** The targets of a scenario: which figures miss theirs, and by how much. */
import { figure, say } from './report.ts';

export class Targets {
  /** What missed its target, as in "ack: p99 31.0 ms, target 25". */
  readonly missed: string[] = [];

  /** A figure that is not a number misses its target. `unit` has its space: " ms". */
  atMost(name: string, value: number, most: number, unit: string): void {
    if (!(value <= most)) this.#miss(name, value, most, unit);
  }

  atLeast(name: string, value: number, least: number, unit: string): void {
    if (!(value >= least)) this.#miss(name, value, least, unit);
  }

  /** Something that must not be at all, as a refusal. */
  fail(sentence: string): void {
    this.missed.push(sentence);
  }

  /** Prints what missed its target. Returns true when nothing did. */
  tell(): boolean {
    for (const line of this.missed) say(`target missed: ${line}`);
    return this.missed.length === 0;
  }

  #miss(name: string, value: number, target: number, unit: string): void {
    this.missed.push(`${name} ${figure(value)}${unit}, target ${target}`);
  }
}
