/** Reads whether a message was accepted, from the answers on one keep-alive connection. */
import { saidOf } from '../counts.ts';
import { accepted, type Reader } from '../one-in-flight.ts';
import { AnswerReader } from './answer-reader.ts';

const two = 0x32;
const lineFeed = 10;
const letterH = 0x48;
const notHttp = 'no answer in HTTP (is it a port of HTTP?)';

/** Returns the status, and after a colon what the server says of it. */
function refusalOf(status: number, body: Buffer): number | string {
  try {
    const { message } = JSON.parse(body.toString()) as { message?: unknown };
    if (typeof message !== 'string') return status;
    return `${status}: ${saidOf(message)}`;
  } catch {
    return status;
  }
}

/**
 * A server answers each accepted message with the same few bytes and no body, so an answer of that length is not
 * parsed. Any other answer is: another server may send a body, also in a later segment.
 */
export class StatusReader implements Reader {
  readonly #answer = new AnswerReader();
  /** Bytes of an answer without a body that was parsed; 0 = there was none yet. */
  #emptyBytes = 0;

  read(buffer: Buffer, length: number): number | string {
    if (length === this.#emptyBytes && !this.#answer.isPartial && buffer[9] === two && buffer[length - 1] === lineFeed)
      return accepted;
    const isFirstPiece = !this.#answer.isPartial;
    if (isFirstPiece && buffer[0] !== letterH) return notHttp;
    const status = this.#answer.read(buffer, length);
    const isAccepted = status >= 200 && status < 300;
    if (isAccepted && isFirstPiece && this.#answer.body.length === 0) this.#emptyBytes = length;
    if (status === 0) return 0;
    if (Number.isNaN(status)) return notHttp;
    return isAccepted ? accepted : refusalOf(status, this.#answer.body);
  }

  forget(): void {
    this.#answer.forget();
  }
}
