/**
 * Counts the members of a JSON object that end within its first bytes, without keeping any byte: how many devices of a
 * message that is too large would have fitted into one that is not. Malformed JSON gives some number.
 */

const quote = 0x22;
const backslash = 0x5c;

export class FittingChildren {
  count = 0;
  #bytesLeft: number;
  #depth = 0;
  #isString = false;
  #isEscaped = false;

  /** `bytesMax`: the bytes that are counted. */
  constructor(bytesMax: number) {
    this.#bytesLeft = bytesMax;
  }

  add(bytes: Uint8Array): void {
    const end = Math.min(bytes.length, this.#bytesLeft);
    this.#bytesLeft -= end;
    for (let i = 0; i < end; i += 1) {
      const byte = bytes[i]!;
      if (this.#isString) {
        if (this.#isEscaped) this.#isEscaped = false;
        else if (byte === backslash) this.#isEscaped = true;
        else if (byte === quote) this.#isString = false;
      } else if (byte === quote) this.#isString = true;
      else if (byte === 0x7b || byte === 0x5b) this.#depth += 1;
      else if (byte === 0x7d || byte === 0x5d) this.#depth -= 1;
      else if (byte === 0x2c && this.#depth === 1) this.count += 1;
    }
  }
}
