/**
 * Finds a string in another one, in a time that grows with the lengths of both, not with the product of the lengths.
 */

/** Up to this product of lengths `includes` is fast for any strings, and for most strings faster than `searchFor`. */
const includedProductMax = 256 * 1024;

/** Returns a test whether a string contains `wanted`, which is prepared once for many strings. */
export function containsTest(wanted: string): (text: string) => boolean {
  let borders: Int32Array | undefined;
  return (text) => {
    if (wanted.length * text.length <= includedProductMax) return text.includes(wanted);
    borders ??= bordersOf(wanted);
    return searchFor(wanted, borders, text);
  };
}

/** Returns for each length of a beginning of `wanted` the longest shorter beginning that is also its end. */
function bordersOf(wanted: string): Int32Array {
  const borders = new Int32Array(wanted.length + 1);
  for (let at = 1, length = 0; at < wanted.length; at += 1) {
    while (length > 0 && wanted.charCodeAt(at) !== wanted.charCodeAt(length)) length = borders[length]!;
    if (wanted.charCodeAt(at) === wanted.charCodeAt(length)) length += 1;
    borders[at + 1] = length;
  }
  return borders;
}

/** Searches by the algorithm of Knuth, Morris and Pratt: no character of the string is read again after a mismatch. */
function searchFor(wanted: string, borders: Int32Array, text: string): boolean {
  if (wanted.length > text.length) return false;
  for (let at = 0, length = 0; at < text.length; at += 1) {
    const code = text.charCodeAt(at);
    while (length > 0 && code !== wanted.charCodeAt(length)) length = borders[length]!;
    if (code === wanted.charCodeAt(length)) length += 1;
    if (length === wanted.length) return true;
  }
  return false;
}
