/**
 * A strict reader of HTTP/1.1 (RFC 9112) with which `fuzz/http.ts` compares what the engine has read: the bodies of the
 * requests at the beginning of some bytes, up to the first fault.
 */
const token = /^[!#$%&'*+.^_`|~0-9A-Za-z-]+$/;
// biome-ignore lint/suspicious/noControlCharactersInRegex: a header may hold a tab, and DEL as the library has it
const fieldValue = /^[^\0-\x08\x0a-\x1f]*$/;

export function bodiesIn(bytes: Buffer): string[] {
  const text = bytes.toString('latin1');
  const bodies: string[] = [];
  for (let at = 0; ; ) {
    const request = requestAt(text, at);
    if (!request) return bodies;
    bodies.push(request.body);
    at = request.end;
  }
}

interface Request {
  body: string;
  end: number;
}

function requestAt(text: string, at: number): Request | undefined {
  const headEnd = text.indexOf('\r\n\r\n', at);
  if (headEnd < 0) return undefined;
  const [first = '', ...lines] = text.slice(at, headEnd).split('\r\n');
  const [method = '', target = '', version = '', ...more] = first.split(' ');
  if (!token.test(method) || target === '' || version !== 'HTTP/1.1' || more.length > 0) return undefined;
  const fields = fieldsOf(lines);
  if (!fields) return undefined;
  const valuesOf = (wanted: string) => fields.filter(([name]) => name === wanted).map(([, value]) => value);
  const lengths = valuesOf('content-length');
  const codings = valuesOf('transfer-encoding');
  if (lengths.length + codings.length > 1) return undefined;
  const start = headEnd + 4;
  if (codings.length === 1) return codings[0]!.toLowerCase() === 'chunked' ? chunkedAt(text, start) : undefined;
  const length = lengths[0] ?? '0';
  if (!/^\d{1,15}$/.test(length)) return undefined;
  const end = start + Number(length);
  return end <= text.length ? { body: text.slice(start, end), end } : undefined;
}

type Field = [name: string, value: string];

/**
 * Fields as uWebSockets.js shows them, which is less strict than RFC 9112: those after a field without a name are
 * checked and not shown.
 */
function fieldsOf(lines: string[]): Field[] | undefined {
  const fields: Field[] = [];
  for (const line of lines) {
    const field = fieldOf(line);
    if (!field) return undefined;
    fields.push(field);
  }
  const nameless = fields.findIndex(([name]) => name === '');
  return nameless < 0 ? fields : fields.slice(0, nameless);
}

/**
 * A field. uWebSockets.js is less strict than RFC 9112 at both ends of a value: it compares signed bytes, so it cuts
 * bytes above 127 there as it cuts spaces.
 */
function fieldOf(line: string): Field | undefined {
  const colon = line.indexOf(':');
  const name = line.slice(0, colon);
  if (colon < 0 || (name !== '' && !token.test(name)) || !fieldValue.test(line.slice(colon + 1))) return undefined;
  return [name.toLowerCase(), line.slice(colon + 1).replace(/^[ \t\x80-\xff]+|[ \t\x80-\xff]+$/g, '')];
}

/**
 * Chunks as uWebSockets.js reads them, which is less strict than RFC 9112: a size ends at the first space, control
 * character or byte above 127 (no digit is 0), and the rest of its line is skipped; any two bytes end a chunk, and a
 * body ends with the line of its last chunk.
 */
function chunkedAt(text: string, start: number): Request | undefined {
  let body = '';
  for (let at = start; ; ) {
    const lineEnd = text.indexOf('\n', at);
    if (lineEnd < 0) return undefined;
    const size = chunkSize(text.slice(at, lineEnd));
    const end = lineEnd + 1 + size + 2;
    if (size === 0) return { body, end };
    if (!(end <= text.length)) return undefined;
    body += text.slice(lineEnd + 1, lineEnd + 1 + size);
    at = end;
  }
}

/** NaN when it is none. */
function chunkSize(line: string): number {
  const [digits = ''] = /^[\x21-\x7f]*/.exec(line) ?? [];
  let size = 0;
  for (const digit of digits.toLowerCase()) {
    const code = digit.charCodeAt(0);
    const value = code >= 0x61 ? code - 0x61 + 10 : code - 0x30;
    if (value < 0 || value > 16 || size > 2 ** 40) return Number.NaN;
    size = size * 16 + value;
  }
  return size;
}
