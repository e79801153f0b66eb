/** The answers on one keep-alive connection, one after the other, put together from the pieces in which they come. */
const headEnd = Buffer.from('\r\n\r\n');
const none: Buffer = Buffer.alloc(0);

export class AnswerReader {
  /** The body of the last whole answer; valid until the next piece. */
  body = none;
  #partial: Buffer | undefined;

  get isPartial(): boolean {
    return this.#partial !== undefined;
  }

  /** The status once the answer is whole, else 0. The piece is copied where it has to be kept. */
  read(buffer: Buffer, length: number): number {
    const piece = buffer.subarray(0, length);
    const answer = this.#partial ? Buffer.concat([this.#partial, piece]) : piece;
    const bodyAt = answer.indexOf(headEnd) + headEnd.length;
    const head = bodyAt < headEnd.length ? '' : answer.toString('latin1', 0, bodyAt);
    const bodyLength = Number(/content-length: (\d+)/i.exec(head)?.[1] ?? 0);
    if (head === '' || answer.length < bodyAt + bodyLength) {
      this.#partial = answer === piece ? Buffer.from(piece) : answer;
      return 0;
    }
    this.#partial = undefined;
    this.body = answer.subarray(bodyAt, bodyAt + bodyLength);
    return Number(head.slice(9, 12));
  }

  /** Starts again, for a new connection. */
  forget(): void {
    this.#partial = undefined;
  }
}
