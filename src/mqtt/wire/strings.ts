/**
 * Strings of the wire: valid UTF-8 without U+0000 (for any other bytes the specification requires the connection to be
 * closed).
 */
import { isUtf8 } from 'node:buffer';

/** Returns undefined for invalid bytes. */
export function readText(bytes: Buffer, start: number, end: number): string | undefined {
  let ascii = true;
  for (let i = start; i < end; i += 1) {
    const byte = bytes[i]!;
    if (byte === 0) return undefined;
    if (byte >= 0x80) ascii = false;
  }
  if (ascii) return bytes.toString('latin1', start, end);
  // `isUtf8` also refuses encoded surrogates, which the specification forbids.
  return isUtf8(bytes.subarray(start, end)) ? bytes.toString('utf8', start, end) : undefined;
}

/** True for a topic on which a client may publish: not empty, without wildcards. */
export function isTopic(text: string): boolean {
  return text !== '' && !text.includes('+') && !text.includes('#');
}

/** True for a filter with valid wildcards: `+` is a whole level, `#` the whole last level. */
export function isFilter(text: string): boolean {
  if (text === '') return false;
  const levels = text.split('/');
  return levels.every((level, i) => {
    if (level === '+') return true;
    if (level === '#') return i === levels.length - 1;
    return !level.includes('+') && !level.includes('#');
  });
}
