/**
 * Unpacks compressed bodies: gzip, deflate, br, and zstd where this Node has it. The unpacked size has a cap, at which
 * the work stops, so that a small body cannot become a large one. Used by the doors for HTTP and MQTT.
 */
import type { Transform } from 'node:stream';
import * as zlib from 'node:zlib';
import { badRequest, Fault, tooLarge, unavailable } from './errors.ts';
import { limits } from './limits.ts';
import { Turns } from './turns.ts';

interface Codec {
  /** Unpacks in the loop; throws ERR_BUFFER_TOO_LARGE at the cap. */
  now(packed: Uint8Array, options: { maxOutputLength: number }): Buffer;
  stream(packed: Uint8Array): Transform;
  /** Returns true for a body with its end. Present for a codec with which Node accepts a body without its end. */
  isWhole?(packed: Uint8Array): boolean;
}

const chunkSize = 64 * 1024;
/** Node has zstd since 22.15. */
const { zstdDecompressSync, createZstdDecompress, constants } = zlib as typeof zlib & {
  zstdDecompressSync?: Codec['now'];
  createZstdDecompress?: (options: object) => Transform;
};

const codecs = new Map<string, Codec>([
  ['gzip', { now: zlib.gunzipSync, stream: () => zlib.createGunzip({ chunkSize }) }],
  [
    'deflate',
    {
      now: (packed, options) => (isZlib(packed) ? zlib.inflateSync : zlib.inflateRawSync)(packed, options),
      stream: (packed) => (isZlib(packed) ? zlib.createInflate : zlib.createInflateRaw)({ chunkSize }),
    },
  ],
  ['br', { now: zlib.brotliDecompressSync, stream: () => zlib.createBrotliDecompress({ chunkSize }) }],
]);
if (zstdDecompressSync && createZstdDecompress) {
  const windowLogMax = (constants as unknown as Record<string, number>)['ZSTD_d_windowLogMax']!;
  // The window is memory beside the body: 8 MiB is what RFC 9659 asks of every receiver.
  const params = { [windowLogMax]: 23 };
  codecs.set('zstd', {
    now: (packed, options) => zstdDecompressSync(packed, { ...options, params } as { maxOutputLength: number }),
    stream: () => createZstdDecompress({ chunkSize, params }),
    isWhole: isWholeZstd,
  });
}

/** The encodings of this server, for `Accept-Encoding` of a refusal. */
export const encodings = [...codecs.keys()].join(', ');

/** The media types of packed bytes (RFC 6713, RFC 8878); br has none. */
const encodingsByType = new Map([
  ['application/gzip', 'gzip'],
  ['application/x-gzip', 'gzip'],
  ['application/zlib', 'deflate'],
  ['application/zstd', 'zstd'],
]);

/** Returns the encoding that a media type names; '' for every other type. */
export function encodingOfType(mediaType: string): string {
  return encodingsByType.get(mediaType.trim().toLowerCase()) ?? '';
}

/** Bodies that are unpacked at once beside the loop. */
const turns = new Turns({
  atOnceMax: limits.unpackedAtOnceMax,
  waitingMax: limits.unpackedWaitingMax,
  refusal: () => unavailable('unpacking', 'Too many compressed bodies are being unpacked; send this one again.'),
});

/**
 * Returns '' for a body that is not compressed. Throws the Fault of an encoding, or a list of them, that is unknown.
 */
export function readEncoding(text: string): string {
  const name = text.trim().toLowerCase();
  if (name === '' || name === 'identity') return '';
  const encoding = name === 'x-gzip' ? 'gzip' : name;
  if (codecs.has(encoding)) return encoding;
  const shown = JSON.stringify(text.slice(0, 60));
  throw new Fault(
    'content_encoding',
    `The content encoding ${shown} is not supported: send one of ${encodings}, or none.`,
  );
}

/**
 * Unpacks a small body in the loop. Returns undefined when unpacking would take long. Throws the Fault of a damaged
 * body.
 */
export function unpackNow(encoding: string, packed: Uint8Array, bytesMax: number): Buffer | undefined {
  if (packed.length > limits.unpackedInLoopBytesMax) return undefined;
  const { now, isWhole } = codecs.get(encoding)!;
  if (isWhole?.(packed) === false) throw damaged(encoding);
  const maxOutputLength = Math.min(bytesMax, limits.unpackedInLoopBytesMax);
  try {
    return now(packed, { maxOutputLength });
  } catch (error) {
    if ((error as { code?: string }).code !== 'ERR_BUFFER_TOO_LARGE') throw damaged(encoding);
    if (maxOutputLength === bytesMax) throw unpackedTooLarge(bytesMax);
    return undefined;
  }
}

/** The sender of a body that waits for its turn: owners take turns, and so do the senders of one owner. */
interface PackedBodySender {
  /** The tenant where it is known, else the network of the address. */
  owner: string;
  sender: string;
}

/**
 * Unpacks a body beside the loop. `grow` is called with the bytes so far and returns false when there is no room for
 * them. Rejects with a Fault.
 */
export function unpack(
  encoding: string,
  packed: Uint8Array,
  bytesMax: number,
  { owner, sender }: PackedBodySender,
  grow: (bytes: number) => boolean,
): Promise<Buffer> {
  return turns.run(owner, sender, async () => {
    const codec = codecs.get(encoding)!;
    if (codec.isWhole?.(packed) === false) throw damaged(encoding);
    const stream = codec.stream(packed);
    stream.end(packed);
    const pieces: Buffer[] = [];
    let bytes = 0;
    try {
      for await (const piece of stream as AsyncIterable<Buffer>) {
        bytes += piece.length;
        if (bytes > bytesMax) throw unpackedTooLarge(bytesMax);
        if (!grow(bytes))
          throw unavailable('bodies_in_flight', 'Too many large requests at once; send this one again.');
        pieces.push(piece);
      }
    } catch (error) {
      if (error instanceof Fault) throw error;
      throw damaged(encoding);
    }
    return Buffer.concat(pieces);
  });
}

/** "deflate" is the zlib format (RFC 9110 section 8.4.1.2); some senders leave out its header. */
function isZlib(packed: Uint8Array): boolean {
  return (packed[0]! & 0x0f) === 8 && ((packed[0]! << 8) | packed[1]!) % 31 === 0;
}

const zstdMagic = 0xfd2fb528;
const skippableMagic = 0x184d2a50;

/** Walks the heads of frames and blocks (RFC 8878 section 3.1): true when the last frame ends with the bytes. */
export function isWholeZstd(packed: Uint8Array): boolean {
  const bytes = Buffer.from(packed.buffer, packed.byteOffset, packed.length);
  let at = 0;
  while (at + 8 < bytes.length) {
    const magic = bytes.readUInt32LE(at);
    if ((magic & 0xfffffff0) >>> 0 === skippableMagic) {
      at += 8 + bytes.readUInt32LE(at + 4);
      continue;
    }
    if (magic !== zstdMagic) return false;
    const descriptor = bytes[at + 4]!;
    const isOneSegment = (descriptor & 0x20) !== 0;
    const sizeBytes = [isOneSegment ? 1 : 0, 2, 4, 8][descriptor >> 6]!;
    at += 5 + (isOneSegment ? 0 : 1) + [0, 1, 2, 4][descriptor & 3]! + sizeBytes;
    for (let isLast = false; !isLast; ) {
      if (at + 3 > bytes.length) return false;
      const head = bytes.readUIntLE(at, 3);
      isLast = (head & 1) === 1;
      const isRun = ((head >> 1) & 3) === 1;
      at += 3 + (isRun ? 1 : head >> 3);
    }
    if ((descriptor & 4) !== 0) at += 4;
  }
  return at === bytes.length && at > 0;
}

function damaged(encoding: string): Fault {
  return badRequest('packed_body', `The body is no ${encoding}, or its end is missing.`);
}

function unpackedTooLarge(bytesMax: number): Fault {
  return tooLarge('body_too_large', `Payload size exceeds the limit of ${bytesMax} bytes when it is unpacked`);
}
