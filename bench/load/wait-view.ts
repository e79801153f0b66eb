/**
 * One line that a wait rewrites in a terminal each second: what is waited for, what was found last, time left.
 * Elsewhere a plain line every ten seconds.
 */
import { clearLive, sayLive, sayProgress } from '../report.ts';

const everyMs = 1_000;
const plainEverySeconds = 10;

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
    clearLive();
  }

  #show(): void {
    const seconds = Math.round((performance.now() - this.#startedAt) / 1000);
    // A narrow terminal cuts the end of the line.
    const left = this.#left === undefined ? '' : `, ${leftText(this.#left)}`;
    const text = `${this.#what}, ${seconds} s so far${left}${this.#found === '' ? '' : ` | ${this.#found}`}`;
    this.#shown += 1;
    if (this.#isTerminal) sayLive(text);
    else if (this.#shown % plainEverySeconds === 0) sayProgress(text);
  }
}

function leftText({ leastSeconds, mostSeconds, at }: TimeLeft & { at: number }): string {
  const passed = (performance.now() - at) / 1000;
  const [least, most] = [leastSeconds, mostSeconds].map((seconds) => Math.max(0, Math.ceil(seconds - passed)));
  if (least === most) return `${most} s left`;
  return least === 0 ? `at most ${most} s left` : `${least} to ${most} s left`;
}
