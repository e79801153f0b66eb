/** The targets of a scenario: which figures miss theirs, and by how much. */
import { figure, say } from './report.ts';

export class Targets {
  /** What missed its target, as in "ack: p99 31.0 ms, target 25". The file and the page of a result have it, too. */
  readonly missed: string[] = [];
  #judged = 0;

  /** Returns true when the target is held. A figure that is no number misses it. `unit` has its space: " ms". */
  atMost(name: string, value: number, most: number, unit: string): boolean {
    return this.#judge(value <= most, name, value, most, unit);
  }

  atLeast(name: string, value: number, least: number, unit: string): boolean {
    return this.#judge(value >= least, name, value, least, unit);
  }

  /** Something that must not be at all, as refusals: `count` is 0 when the target is held. */
  none(name: string, count: number): boolean {
    return this.#judge(count === 0, name, count, 0, '');
  }

  /** A target without a figure: `fault` says what missed it, '' = nothing did. */
  faultless(fault: string): boolean {
    this.#judged += 1;
    if (fault !== '') this.missed.push(fault);
    return fault === '';
  }

  /** Something that must not be at all and has no figure. */
  fail(sentence: string): void {
    this.faultless(sentence);
  }

  /** Prints what missed its target, or that nothing did. Returns true when nothing did. */
  tell(): boolean {
    for (const line of this.missed) say(`target missed: ${line}`);
    const isHeld = this.missed.length === 0;
    if (isHeld && this.#judged > 0) say(this.#judged === 1 ? 'the target is held' : `all ${this.#judged} targets held`);
    return isHeld;
  }

  #judge(isHeld: boolean, name: string, value: number, target: number, unit: string): boolean {
    const isWhole = Number.isInteger(target) || target >= 100;
    const targetText = isWhole ? figure(target) : String(Number(target.toPrecision(4)));
    return this.faultless(isHeld ? '' : `${name} ${figure(value)}${unit}, target ${targetText}`);
  }
}
