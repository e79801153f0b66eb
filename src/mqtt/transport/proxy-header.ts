/**
 * Reads the header that a proxy sends before the bytes of its client, in versions 1 and 2 of HAProxy's PROXY protocol
 * (https://www.haproxy.org/download/2.6/doc/proxy-protocol.txt). Additional fields (TLVs) are skipped.
 */
import { isIP } from 'node:net';
import { limits } from '../../base/limits.ts';

interface ProxyHeader {
  /** Length of the header. */
  bytes: number;
  /** Undefined = the proxy connects for itself, as in a health check, or the client is unknown. */
  address: string | undefined;
}

const signature = Buffer.from('\r\n\r\n\0\r\nQUIT\n', 'latin1');
const fixedBytes = 16;
const textStart = Buffer.from('PROXY ', 'latin1');
/** The longest line of version 1, with its CRLF. */
const textBytesMax = 107;

const version2 = 0x20;
const [local, proxied] = [0, 1];
/** Address family and transport; a value for datagrams is invalid on a stream. */
const [unspecified, tcp4, tcp6, unixStream] = [0x00, 0x11, 0x21, 0x31];
/** Bytes of the two addresses and ports. */
const addressBytes = new Map([
  [unspecified, 0],
  [tcp4, 12],
  [tcp6, 36],
  [unixStream, 216],
]);

/** Reads the first bytes of a connection. An incomplete header is one whose next bytes could still make it valid. */
export function readProxyHeader(bytes: Buffer): ProxyHeader | 'incomplete' | 'invalid' {
  if (startsWith(bytes, signature)) return readBinary(bytes);
  return startsWith(bytes, textStart) ? readText(bytes) : 'invalid';
}

/** A shorter buffer may be the beginning of `start`. */
function startsWith(bytes: Buffer, start: Buffer): boolean {
  const length = Math.min(bytes.length, start.length);
  return bytes.compare(start, 0, length, 0, length) === 0;
}

function readText(bytes: Buffer): ProxyHeader | 'incomplete' | 'invalid' {
  const end = bytes.subarray(0, textBytesMax).indexOf('\r\n');
  if (end < 0) return bytes.length < textBytesMax ? 'incomplete' : 'invalid';
  const [, family = '', ...fields] = bytes.toString('latin1', 0, end).split(' ');
  const header = { bytes: end + 2, address: undefined };
  // What follows UNKNOWN is ignored.
  if (family === 'UNKNOWN') return header;
  const version = family === 'TCP4' ? 4 : family === 'TCP6' ? 6 : 0;
  const [source = '', target = '', ...ports] = fields;
  const isValid = version !== 0 && isIP(source) === version && isIP(target) === version;
  return isValid && ports.length === 2 && ports.every(isPort) ? { ...header, address: source } : 'invalid';
}

function isPort(text: string): boolean {
  return /^\d{1,5}$/.test(text) && Number(text) <= 65_535;
}

function readBinary(bytes: Buffer): ProxyHeader | 'incomplete' | 'invalid' {
  if (bytes.length < fixedBytes) return 'incomplete';
  const command = bytes[12]! - version2;
  const family = bytes[13]!;
  const length = bytes.readUInt16BE(14);
  if ((command !== local && command !== proxied) || fixedBytes + length > limits.proxyHeaderBytesMax) return 'invalid';
  // The family and the addresses of LOCAL are ignored.
  const needed = command === local ? 0 : addressBytes.get(family);
  if (needed === undefined || length < needed) return 'invalid';
  const end = fixedBytes + length;
  if (bytes.length < end) return 'incomplete';
  return { bytes: end, address: command === local ? undefined : sourceOf(family, bytes) };
}

function sourceOf(family: number, bytes: Buffer): string | undefined {
  if (family === tcp4) return bytes.subarray(fixedBytes, fixedBytes + 4).join('.');
  if (family !== tcp6) return undefined;
  return Array.from({ length: 8 }, (_, n) => bytes.readUInt16BE(fixedBytes + 2 * n).toString(16)).join(':');
}
