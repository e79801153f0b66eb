/**
 * Parses multipart/form-data (RFC 7578) from a body in memory, whose size is capped already: the parts are views of it.
 * Parts and the head of each part are capped; every fault is a 400 with its cause.
 */
import { badRequest, Fault } from '../base/errors.ts';

interface Part {
  name: string;
  /** '' = not a file. */
  fileName: string;
  contentType: string;
  bytes: Buffer;
}

const partsMax = 16;
const headBytesMax = 8 * 1024;
const boundaryPattern = /;\s*boundary=(?:"([^"]{1,70})"|([^\s;"]{1,70}))\s*(?:;|$)/i;

export function readMultipart(body: Buffer, contentType: string): Part[] {
  if (!/^multipart\/form-data\s*(;|$)/i.test(contentType)) {
    const message = `Content type '${contentType.slice(0, 100)}' not supported: send multipart/form-data`;
    throw new Fault('media_type', message);
  }
  const [, quoted, plain] = boundaryPattern.exec(contentType) ?? [];
  const boundary = quoted ?? plain;
  if (boundary === undefined) throw malformed('it names no boundary');
  const delimiter = Buffer.from(`\r\n--${boundary}`, 'latin1');
  const parts: Part[] = [];
  // Bytes before the first delimiter are ignored; the body may begin with the first delimiter.
  let at = startsWith(body, delimiter.subarray(2), 0) ? delimiter.length - 2 : endOf(body, delimiter, 0);
  for (;;) {
    if (at < 0) throw malformed('its last part has no end');
    if (startsWith(body, dashes, at)) return parts;
    at = endOfPadding(body, at);
    if (parts.length === partsMax) throw malformed(`it has more than ${partsMax} parts`);
    const headEnd = startsWith(body, lineEnd, at) ? at : body.subarray(at, at + headBytesMax).indexOf(emptyLine) + at;
    if (headEnd < at) throw malformed('the head of a part has no end or is too long');
    const contentStart = headEnd === at ? at + lineEnd.length : headEnd + emptyLine.length;
    // The delimiter of an empty part shares its line end with the head.
    const next = body.indexOf(delimiter, contentStart - lineEnd.length);
    if (next < 0) throw malformed('its last part has no end');
    const head = body.toString('utf8', at, headEnd);
    parts.push(partOf(head, body.subarray(contentStart, Math.max(next, contentStart))));
    at = next + delimiter.length;
  }
}

const lineEnd = Buffer.from('\r\n');
const emptyLine = Buffer.from('\r\n\r\n');
const dashes = Buffer.from('--');

function endOf(body: Buffer, delimiter: Buffer, from: number): number {
  const at = body.indexOf(delimiter, from);
  return at < 0 ? -1 : at + delimiter.length;
}

/** Reads the blanks and the end of line after a delimiter. */
function endOfPadding(body: Buffer, from: number): number {
  let at = from;
  while (at < body.length && at - from < 64 && (body[at] === 0x20 || body[at] === 0x09)) at += 1;
  if (!startsWith(body, lineEnd, at)) throw malformed('a boundary does not end its line');
  return at + lineEnd.length;
}

function startsWith(body: Buffer, bytes: Buffer, at: number): boolean {
  return body.length >= at + bytes.length && body.compare(bytes, 0, bytes.length, at, at + bytes.length) === 0;
}

function partOf(head: string, bytes: Buffer): Part {
  let disposition = '';
  let contentType = '';
  for (const line of head.split('\r\n')) {
    const colon = line.indexOf(':');
    const name = line.slice(0, Math.max(colon, 0)).trim().toLowerCase();
    if (name === 'content-disposition') disposition = line.slice(colon + 1).trim();
    else if (name === 'content-type') contentType = line.slice(colon + 1).trim();
  }
  const parameters = parametersOf(disposition);
  const name = parameters.get('name');
  if (name === undefined) throw malformed('a part has no name');
  const fileName = extended(parameters.get('filename*')) ?? parameters.get('filename') ?? '';
  return { name, fileName, contentType, bytes };
}

/** Parses `form-data; name="file"; filename="a \"b\".bin"`, and `%22`, as browsers write a quote. */
function parametersOf(disposition: string): Map<string, string> {
  const parameters = new Map<string, string>();
  if (!/^form-data\s*(;|$)/i.test(disposition)) return parameters;
  for (const match of disposition.matchAll(/;\s*([\w*-]{1,40})=(?:"((?:[^"\\]|\\.){0,4096})"|([^\s;"]{0,4096}))/g)) {
    const [, name = '', quoted, plain = ''] = match;
    // A backslash escapes a quote or a backslash. Elsewhere it separates the parts of a Windows path.
    const value = quoted?.replace(/\\(["\\])/g, '$1').replaceAll('%22', '"') ?? plain;
    parameters.set(name.toLowerCase(), value);
  }
  return parameters;
}

/** Parses `UTF-8''p%C3%BCmp.bin`; returns undefined for anything else. */
function extended(value: string | undefined): string | undefined {
  const [, text] = /^utf-8'[^']*'(.*)$/i.exec(value ?? '') ?? [];
  if (text === undefined) return undefined;
  try {
    return decodeURIComponent(text);
  } catch {
    return undefined;
  }
}

function malformed(what: string): Fault {
  return badRequest('multipart', `The multipart body is malformed: ${what}.`);
}
