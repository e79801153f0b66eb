/** The answers on one keep-alive connection, one after the other, put together from the pieces in which they come. */
const headEnd = Buffer.from('\r\n\r\n');
const lineEnd = '\r\n';
const lastChunk = Buffer.from('0\r\n\r\n');
const none: Buffer = Buffer.alloc(0);

export class AnswerReader {
  /** The body of the last whole answer; valid until the next piece. */
  body = none;
  /** The pieces of an answer that is not whole. They are joined once its length is reached: it may be megabytes. */
  #pieces: Buffer[] = [];
  #length = 0;
  /** Bytes of that answer; 0 = not known yet, and each piece is joined and read. */
  #wholeLength = 0;

  get isPartial(): boolean {
    return this.#pieces.length > 0;
  }

  /** The status once the answer is whole, else 0. The piece is copied where it has to be kept. */
  read(buffer: Buffer, length: number): number {
    const piece = buffer.subarray(0, length);
    this.#length += length;
    if (this.#length < this.#wholeLength) {
      this.#pieces.push(Buffer.from(piece));
      return 0;
    }
    const answer = this.isPartial ? Buffer.concat([...this.#pieces, piece]) : piece;
    const bodyAt = answer.indexOf(headEnd) + headEnd.length;
    const head = bodyAt < headEnd.length ? '' : answer.toString('latin1', 0, bodyAt);
    const bodyLength = Number(/content-length: *(\d+)/i.exec(head)?.[1] ?? 0);
    const isChunked = /transfer-encoding: *chunked/i.test(head);
    if (head === '' || answer.length < bodyAt + bodyLength || (isChunked && !hasLastChunk(answer))) {
      this.#pieces = [answer === piece ? Buffer.from(piece) : answer];
      if (head !== '' && !isChunked) this.#wholeLength = bodyAt + bodyLength;
      return 0;
    }
    this.forget();
    this.body = isChunked ? joinedChunks(answer, bodyAt) : answer.subarray(bodyAt, bodyAt + bodyLength);
    return Number(head.slice(9, 12));
  }

  /** Starts again, for a new connection. */
  forget(): void {
    this.#pieces = [];
    this.#length = 0;
    this.#wholeLength = 0;
  }
}

/** The answer is whole, so that its chunks end with an empty one. */
function joinedChunks(answer: Buffer, bodyAt: number): Buffer {
  const chunks: Buffer[] = [];
  for (let at = bodyAt; ; ) {
    const sizeEnd = answer.indexOf(lineEnd, at);
    const size = Number.parseInt(answer.toString('latin1', at, Math.max(at, sizeEnd)), 16);
    if (!(size > 0)) return Buffer.concat(chunks);
    const from = sizeEnd + lineEnd.length;
    chunks.push(answer.subarray(from, from + size));
    at = from + size + lineEnd.length;
  }
}

/** One request at a time is in flight, so the answer ends where the bytes end. */
function hasLastChunk(answer: Buffer): boolean {
  return answer.subarray(-lastChunk.length).equals(lastChunk);
}
