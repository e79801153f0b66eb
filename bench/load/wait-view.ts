/**
 * One line that a wait rewrites in a terminal each second: what is waited for, what was found last, time left.
 * Elsewhere a plain line every ten seconds.
 */
import { sayProgress } from '../report.ts';

const everyMs = 1_000;
const plainEverySeconds = 10;
const clearLine = '\r\x1b[2K';

interface TimeLeft {
  leastSeconds: number;
  mostSeconds: number;
}

export class WaitView {
  readonly #what: string;
  readonly #timer: NodeJS.Timeout;
  readonly #isTerminal = process.stdout.isTTY === true;
  readonly #startedAt = performance.now();
  #found = '';
  #left: (TimeLeft & { at: number }) | undefined;
  #shown = 0;

  constructor(what: string) {
    this.#what = what;
    this.#timer = setInterval(() => this.#show(), everyMs);
    // A wait that has failed shows nothing more.
    this.#timer.unref();
  }

  /** `found`: the last figure of what is waited for. `left`: from now on. */
  note(found: string, left?: TimeLeft): void {
    this.#found = found;
    this.#left = left && { ...left, at: performance.now() };
  }

  /** Removes the line. */
  end(): void {
    clearInterval(this.#timer);
    if (this.#isTerminal && this.#shown > 0) process.stdout.write(clearLine);
    this.#shown = 0;
  }

  #show(): void {
    const seconds = Math.round((performance.now() - this.#startedAt) / 1000);
    const parts = [`${this.#what}, ${seconds} s so far`];
    if (this.#found !== '') parts.push(this.#found);
    if (this.#left !== undefined) parts.push(leftText(this.#left));
    const text = parts.join(' | ');
    this.#shown += 1;
    if (this.#isTerminal) process.stdout.write(`${clearLine}${text.slice(0, (process.stdout.columns ?? 80) - 1)}`);
    else if (this.#shown % plainEverySeconds === 0) sayProgress(text);
  }
}

function leftText({ leastSeconds, mostSeconds, at }: TimeLeft & { at: number }): string {
  const passed = (performance.now() - at) / 1000;
  const [least, most] = [leastSeconds, mostSeconds].map((seconds) => Math.max(0, Math.ceil(seconds - passed)));
  return least === most ? `${most} s left` : `${least} to ${most} s left`;
}
