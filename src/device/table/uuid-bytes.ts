/** A UUID as 16 bytes and as text, without a string in between. */
import { assert } from '../../base/errors.ts';

export const uuidBytes = 16;

const digits = Buffer.from('0123456789abcdef');
/** The value of a hexadecimal digit by its character; 255 = another character. */
const values = new Uint8Array(256).fill(255);
for (const [value, character] of digits.entries()) values[character] = value;
for (const [value, character] of Buffer.from('ABCDEF').entries()) values[character] = 10 + value;

/** The place of each byte in the text. */
const places = Uint8Array.of(0, 2, 4, 6, 9, 11, 14, 16, 19, 21, 24, 26, 28, 30, 32, 34);
const textChars = 36;
const text = Buffer.alloc(textChars, '-');

export function uuidText(bytes: Uint8Array, at: number): string {
  for (let i = 0; i < uuidBytes; i += 1) {
    const byte = bytes[at + i]!;
    const place = places[i]!;
    text[place] = digits[byte >>> 4]!;
    text[place + 1] = digits[byte & 15]!;
  }
  return text.toString('latin1');
}

export function putUuid(uuid: string, bytes: Uint8Array, at: number): void {
  assert(uuid.length === textChars, 'a UUID has 36 characters');
  for (let i = 0; i < uuidBytes; i += 1) {
    const place = places[i]!;
    const high = values[uuid.charCodeAt(place)] ?? 255;
    const low = values[uuid.charCodeAt(place + 1)] ?? 255;
    assert((high | low) < 16, 'a UUID has hexadecimal digits');
    bytes[at + i] = (high << 4) | low;
  }
}
