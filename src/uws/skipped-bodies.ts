/**
 * Bodies of refused requests, which are received and dropped. A client that is still sending when its connection is
 * closed gets an error of its socket, and may not read the answer. So an answer waits for the end of a body that ends
 * soon, and the connection stays usable. Any other answer is sent before the end of the body, and its connection is
 * closed at the end of the body, or when the client has had long enough to read the answer.
 */
import { limits } from '../base/limits.ts';
import type { Answer, Exchange } from './exchange.ts';

export class SkippedBodies {
  readonly #waiting = new Set<SkippedBody>();
  #isOver = false;

  /** Drops what is left of the body. The caller sets `isBodyWhole`, and calls `received`, for each further piece. */
  skip(exchange: Exchange, contentLength: number): SkippedBody {
    const isLong = this.#isOver || contentLength > limits.skippedBodyBytesMax;
    const skipped = new SkippedBody(exchange, isLong, this.#waiting);
    exchange.skipped = skipped;
    return skipped;
  }

  /** Answers a request whose body nothing has read. */
  answer(exchange: Exchange, contentLength: number, answer: Answer): void {
    const skipped = this.skip(exchange, contentLength);
    exchange.onData((_chunk, isLast) => {
      exchange.isBodyWhole = isLast;
      skipped.received();
    });
    skipped.answer(answer);
  }

  /** Sends every answer that waits for the end of a body, and those that come later at once. */
  end(): void {
    this.#isOver = true;
    for (const skipped of [...this.#waiting]) skipped.answerEarly();
  }
}

class SkippedBody {
  readonly #exchange: Exchange;
  readonly #isLong: boolean;
  /** The bodies whose answers wait for their ends. */
  readonly #waiting: Set<SkippedBody>;
  #answer: Answer | undefined;
  #timer: NodeJS.Timeout | undefined;

  constructor(exchange: Exchange, isLong: boolean, waiting: Set<SkippedBody>) {
    this.#exchange = exchange;
    this.#isLong = isLong;
    this.#waiting = waiting;
  }

  /** Answers at the end of the body, or after a second. */
  answer(answer: Answer): void {
    const exchange = this.#exchange;
    if (exchange.done) return;
    exchange.resume();
    if (exchange.isBodyWhole) {
      exchange.answer(answer);
      return;
    }
    this.#answer = answer;
    if (this.#isLong) {
      this.answerEarly();
      return;
    }
    this.#waiting.add(this);
    this.#timer = setTimeout(() => this.answerEarly(), limits.skippedBodyWaitMs);
  }

  /** Called for each piece of the body. */
  received(): void {
    const exchange = this.#exchange;
    if (!exchange.isBodyWhole || this.#answer === undefined) return;
    this.end();
    if (exchange.done) exchange.closeEarly();
    else exchange.answer(this.#answer);
  }

  answerEarly(): void {
    this.end();
    this.#exchange.answerEarly(this.#answer!);
    this.#timer = setTimeout(() => this.#exchange.closeEarly(), limits.skippedBodyMsMax);
  }

  /** Called when the body has ended, and when the client has disconnected. */
  end(): void {
    clearTimeout(this.#timer);
    this.#waiting.delete(this);
  }
}
