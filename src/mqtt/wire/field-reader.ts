/**
 * Reads the body of a packet field by field. Refuses what mqtt-packet would accept: strings that are not UTF-8, numbers
 * in more bytes than necessary, incomplete fields, and bytes after the last field.
 */
import { readText } from './strings.ts';
import { malformed } from './wire-error.ts';

export class FieldReader {
  #bytes: Buffer;
  #at: number;
  #end: number;

  constructor(bytes: Buffer, start: number, end: number) {
    this.#bytes = bytes;
    this.#at = start;
    this.#end = end;
  }

  get left(): number {
    return this.#end - this.#at;
  }

  get at(): number {
    return this.#at;
  }

  byte(): number {
    return this.#bytes[this.#take(1)]!;
  }

  uint16(): number {
    return this.#bytes.readUInt16BE(this.#take(2));
  }

  uint32(): number {
    return this.#bytes.readUInt32BE(this.#take(4));
  }

  variable(): number {
    let value = 0;
    for (let i = 0; i < 4; i += 1) {
      const byte = this.byte();
      value += (byte & 0x7f) * 2 ** (7 * i);
      if (byte >= 0x80) continue;
      if (byte === 0 && i > 0) throw malformed;
      return value;
    }
    throw malformed;
  }

  text(): string {
    const length = this.uint16();
    const start = this.#take(length);
    const text = readText(this.#bytes, start, start + length);
    if (text === undefined) throw malformed;
    return text;
  }

  /** Returns a copy, because the buffer is reused. */
  binary(): Buffer {
    const length = this.uint16();
    const start = this.#take(length);
    return Buffer.from(this.#bytes.subarray(start, start + length));
  }

  /** Returns a reader of the next `length` bytes. */
  part(length: number): FieldReader {
    const start = this.#take(length);
    return new FieldReader(this.#bytes, start, start + length);
  }

  /** Throws when bytes remain. */
  finish(): void {
    if (this.#at !== this.#end) throw malformed;
  }

  #take(length: number): number {
    const at = this.#at;
    if (at + length > this.#end) throw malformed;
    this.#at = at + length;
    return at;
  }
}
