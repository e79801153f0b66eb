/**
 * The first bytes of a refused message as text that is safe to show: control characters and bytes that are not UTF-8
 * are escaped, and the values of members whose name speaks of a secret are replaced. A person reads the text; no
 * program parses it.
 */
import { limits } from '../base/limits.ts';

/**
 * The end of a name that speaks of a secret, and the sign before its value. Bounded repetitions keep the search linear
 * for any bytes.
 */
const secretName =
  /(?:secret|passw(?:or)?d|passphrase|token|credential|private|api_?-?key)[\w.-]{0,40}["']?\s{0,8}[:=]\s{0,8}/gi;
const hidden = '***';

/** Bytes that are searched for secrets: a value that begins inside the excerpt is hidden as a whole. */
const searchedBytes = 2 * limits.diagnosedBytesMax;

export function excerptOf(bytes: Uint8Array | undefined): string {
  if (bytes === undefined || bytes.length === 0) return '';
  const start = Buffer.from(bytes.buffer, bytes.byteOffset, Math.min(bytes.length, searchedBytes));
  const text = escaped(withoutSecrets(start.toString('utf8')));
  const isCut = text.length > limits.diagnosedBytesMax || bytes.length > searchedBytes;
  return isCut ? `${text.slice(0, limits.diagnosedBytesMax)}…` : text;
}

function withoutSecrets(text: string): string {
  let shown = '';
  let at = 0;
  secretName.lastIndex = 0;
  for (let found = secretName.exec(text); found; found = secretName.exec(text)) {
    const from = found.index + found[0].length;
    shown += `${text.slice(at, from)}${hidden}`;
    at = endOfValue(text, from);
    secretName.lastIndex = at;
  }
  return shown + text.slice(at);
}

/** The end of the value at `from`. Of an object or an array the whole rest of the text is the value. */
function endOfValue(text: string, from: number): number {
  const first = text[from];
  if (first === '{' || first === '[') return text.length;
  if (first !== '"' && first !== "'") {
    const end = text.slice(from).search(/[,}\]\n]/);
    return end < 0 ? text.length : from + end;
  }
  for (let i = from + 1; i < text.length; i += 1) {
    if (text[i] === '\\') i += 1;
    else if (text[i] === first) return i + 1;
  }
  return text.length;
}

/** Also escapes what changes the direction of a text or breaks its line. */
function escaped(text: string): string {
  return text.replace(/[\p{Cc}\p{Cf}\p{Cs}\p{Zl}\p{Zp}\ufffd]/gu, (char) => {
    const code = char.codePointAt(0)!.toString(16);
    return code.length <= 4 ? `\\u${code.padStart(4, '0')}` : `\\u{${code}}`;
  });
}
