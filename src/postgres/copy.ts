/**
 * Reads one `bytea` of one row as bytes: `COPY (select …) TO STDOUT (FORMAT binary)`. For a plain select the driver
 * makes a string of every column, which for a large value is twice its size in garbage. Takes no parameters: the
 * statement must contain only checked values.
 */

/** The part of the driver's connection that is used here. */
interface Connection {
  query(text: string): void;
}

const signature = Buffer.from('PGCOPY\n\xff\r\n\0', 'latin1');
/** Signature, flags, and the length of an extension that is empty. */
const headerBytes = signature.length + 8;

/** A submittable of the driver, which receives each message of the answer. */
export class CopyValue {
  /** Read by the driver, which ends the wait after this time and then calls `handleError`. */
  readonly query_timeout: number;
  readonly #select: string;
  #value: Buffer | undefined;
  /** The driver replaces the callback by one that also stops the timeout. */
  callback: (error: Error | null, value?: Buffer) => void;

  constructor(select: string, timeoutMs: number, settled: (error: Error | null, value?: Buffer) => void) {
    this.#select = select;
    this.query_timeout = timeoutMs;
    this.callback = settled;
  }

  submit(connection: Connection): void {
    connection.query(`copy (${this.#select}) to stdout (format binary)`);
  }

  /** A message has the header, a row, or the end; the header may be in the message of the first row. */
  handleCopyData({ chunk }: { chunk: Buffer }): void {
    const isFirst =
      chunk.length >= headerBytes && chunk.compare(signature, 0, signature.length, 0, signature.length) === 0;
    const at = isFirst ? headerBytes : 0;
    if (chunk.length < at + 6 || chunk.readInt16BE(at) !== 1) return;
    const length = chunk.readInt32BE(at + 2);
    if (length >= 0) this.#value = Buffer.from(chunk.subarray(at + 6, at + 6 + length));
  }

  handleCommandComplete(): void {}

  handleReadyForQuery(): void {
    this.callback(null, this.#value);
  }

  handleError(error: Error): void {
    this.callback(error);
  }
}
