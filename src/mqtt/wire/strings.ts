/** Text of the wire: valid UTF-8 without U+0000 (the specification wants the connection closed for anything else). */
import { isUtf8 } from 'node:buffer';

/** Undefined when it is not valid. */
export function readText(bytes: Buffer, start: number, end: number): string | undefined {
  let ascii = true;
  for (let i = start; i < end; i += 1) {
    const byte = bytes[i]!;
    if (byte === 0) return undefined;
    if (byte >= 0x80) ascii = false;
  }
  if (ascii) return bytes.toString('latin1', start, end);
  // Surrogates are no valid UTF-8 either.
  return isUtf8(bytes.subarray(start, end)) ? bytes.toString('utf8', start, end) : undefined;
}

/** A topic that may be published on: not empty, no wildcard. */
export function isTopic(text: string): boolean {
  return text !== '' && !text.includes('+') && !text.includes('#');
}

/** A filter whose wildcards stand where they may: `+` is a whole level, `#` the whole last one. */
export function isFilter(text: string): boolean {
  if (text === '') return false;
  const levels = text.split('/');
  return levels.every((level, i) => {
    if (level === '+') return true;
    if (level === '#') return i === levels.length - 1;
    return !level.includes('+') && !level.includes('#');
  });
}
