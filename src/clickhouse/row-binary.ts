/**
 * Reads rows in ClickHouse's format RowBinary: the columns of a row one after the other, without names. A text may have
 * any bytes, which JSON cannot carry. The reader of a row must know its columns.
 */

/** The columns of one row, in their order. */
export class BinaryRow {
  readonly #bytes: Buffer;
  #at: number;

  constructor(bytes: Buffer, at: number) {
    this.#bytes = bytes;
    this.#at = at;
  }

  /** Where the next column begins. After a failed read: where the bytes of the row must reach at least. */
  get at(): number {
    return this.#at;
  }

  uint8(): number {
    return this.#bytes[this.#take(1)]!;
  }

  uint32(): number {
    return this.#bytes.readUInt32LE(this.#take(4));
  }

  int64(): bigint {
    return this.#bytes.readBigInt64LE(this.#take(8));
  }

  uint64(): bigint {
    return this.#bytes.readBigUInt64LE(this.#take(8));
  }

  uint128(): bigint {
    const low = this.uint64();
    return (this.uint64() << 64n) | low;
  }

  float64(): number {
    return this.#bytes.readDoubleLE(this.#take(8));
  }

  /** A view of the bytes. */
  text(): Buffer {
    const length = this.#varint();
    const start = this.#take(length);
    return this.#bytes.subarray(start, start + length);
  }

  #varint(): number {
    let value = 0;
    for (let factor = 1; ; factor *= 128) {
      const byte = this.uint8();
      value += (byte & 0x7f) * factor;
      if (byte < 0x80) return value;
    }
  }

  #take(length: number): number {
    const start = this.#at;
    this.#at = start + length;
    if (this.#at > this.#bytes.length) throw notWhole;
    return start;
  }
}

/** The row ends in a later piece. A constant, because the stack of an error costs more than a row. */
const notWhole = new Error('The row is not whole yet.');

/** Cuts pieces into rows. */
export class BinaryRows {
  readonly #take: (row: BinaryRow) => void;
  /** The pieces of a row whose end has not come, and their bytes. */
  #rest: Buffer[] = [];
  #restBytes = 0;
  /** The bytes that the row has at least. */
  #neededBytes = 0;

  /**
   * `take` must read each column of the row, and have no effect before: for a row that was not whole, it is called
   * again.
   */
  constructor(take: (row: BinaryRow) => void) {
    this.#take = take;
  }

  /** False between the pieces of a row. */
  get isWhole(): boolean {
    return this.#restBytes === 0;
  }

  add(piece: Buffer): void {
    this.#rest.push(piece);
    this.#restBytes += piece.length;
    if (this.#restBytes >= this.#neededBytes) this.#takeRows();
  }

  #takeRows(): void {
    const bytes = this.#rest.length === 1 ? this.#rest[0]! : Buffer.concat(this.#rest);
    let at = 0;
    let neededBytes = 0;
    while (at < bytes.length) {
      const row = new BinaryRow(bytes, at);
      try {
        this.#take(row);
      } catch (error) {
        if (error !== notWhole) throw error;
        neededBytes = row.at - at;
        break;
      }
      at = row.at;
    }
    this.#rest = at < bytes.length ? [bytes.subarray(at)] : [];
    this.#restBytes = bytes.length - at;
    this.#neededBytes = neededBytes;
  }
}
