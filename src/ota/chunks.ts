/**
 * Chunks of package files: the bytes of a chunk, and the stored pieces that contain them. A cache keeps the pieces used
 * last, up to a cap. Concurrent requests for a piece share one load. Tenants take turns with loads.
 */
import { assert, type Fault, unavailable } from '../base/errors.ts';
import { FairQueue } from '../base/fair-queue.ts';

/**
 * Bytes of a piece in the store; the last piece of a file may be shorter. The value never changes. A piece fits into
 * one 64 kB read of the database driver: 256 kB left four times as much garbage for each byte.
 */
export const pieceBytes = 32 * 1024;

/** Bytes [start, end) of a file. */
export interface ByteRange {
  start: number;
  end: number;
}

/** Returns the range of chunk `chunk` of `size` bytes, cut at the end of the file; for size 0 the whole file. */
export function chunkRange(fileBytes: number, size: number, chunk: number): ByteRange {
  if (size === 0) return { start: 0, end: fileBytes };
  // The product is at most 2^62. A product above 2^53 is inexact, and far beyond the end of any file.
  const start = Math.min(size * chunk, fileBytes);
  return { start, end: Math.min(start + size, fileBytes) };
}

/** Identifies a file: a package and the tenant that owns it. */
interface FileOwner {
  readonly id: string;
  readonly tenantId: string;
}

interface WaitingLoad {
  run(): void;
  refuse(fault: Fault): void;
}

type LoadPiece = (packageId: string, number: number) => Promise<Buffer>;

export class PieceCache {
  readonly #load: LoadPiece;
  readonly #bytesMax: number;
  /** Loads that wait, and loads that run: a running load takes several times the bytes of its piece. */
  readonly #waiting: FairQueue<WaitingLoad>;
  readonly #atOnceMax: number;
  #running = 0;
  /** Ordered by use: the last entry is the piece used last. */
  readonly #pieces = new Map<string, Buffer>();
  readonly #loading = new Map<string, Promise<Buffer>>();
  #bytes = 0;

  constructor(load: LoadPiece, bytesMax: number, loadingMax: number) {
    assert(bytesMax >= pieceBytes, 'the cache has room for a piece');
    this.#load = load;
    this.#bytesMax = bytesMax;
    this.#atOnceMax = Math.min(4, loadingMax);
    this.#waiting = new FairQueue(loadingMax - this.#atOnceMax);
  }

  get bytes(): number {
    return this.#bytes;
  }

  /** Returns the bytes of a file from `at` to the end of their piece, or to `end`; a view that must not be changed. */
  async read(file: FileOwner, at: number, end: number): Promise<Buffer> {
    const number = Math.floor(at / pieceBytes);
    const piece = await this.#piece(file, number);
    const start = number * pieceBytes;
    return piece.subarray(at - start, Math.min(end - start, piece.length));
  }

  /** Returns bytes that lie in one cached piece, without a promise. */
  peek(packageId: string, { start, end }: ByteRange): Buffer | undefined {
    const number = Math.floor(start / pieceBytes);
    if (end > (number + 1) * pieceBytes) return undefined;
    const piece = this.#used(`${packageId}:${number}`);
    return piece?.subarray(start - number * pieceBytes, end - number * pieceBytes);
  }

  #used(name: string): Buffer | undefined {
    const piece = this.#pieces.get(name);
    if (piece) {
      this.#pieces.delete(name);
      this.#pieces.set(name, piece);
    }
    return piece;
  }

  #piece(file: FileOwner, number: number): Buffer | Promise<Buffer> {
    const name = `${file.id}:${number}`;
    const piece = this.#used(name);
    if (piece) return piece;
    const loading = this.#loading.get(name);
    if (loading) return loading;
    const promise = this.#loaded(name, file, number).finally(() => this.#loading.delete(name));
    this.#loading.set(name, promise);
    return promise;
  }

  /** Starts the next waiting load in the place of the finished one. */
  #finished(): void {
    const next = this.#waiting.shift();
    if (next) next.run();
    else this.#running -= 1;
  }

  async #loaded(name: string, { id, tenantId }: FileOwner, number: number): Promise<Buffer> {
    if (this.#running < this.#atOnceMax) this.#running += 1;
    else {
      await new Promise<void>((run, refuse) => {
        this.#waiting.push({ tenant: tenantId, caller: id }, { run, refuse })?.refuse(tooManyLoads);
      });
    }
    const piece = await this.#load(id, number).finally(() => this.#finished());
    this.#pieces.set(name, piece);
    this.#bytes += piece.length;
    for (const [oldest, { length }] of this.#pieces) {
      if (this.#bytes <= this.#bytesMax) break;
      this.#pieces.delete(oldest);
      this.#bytes -= length;
    }
    return piece;
  }
}

const tooManyLoads = unavailable('ota_pieces', 'Too many different files are being read; try again.');

/** The largest answer that is sent as a whole. */
export const wholeBytesMax = pieceBytes;

/** Many bytes, read slice by slice: each slice begins where the previous one ended. */
export interface SlicedFile {
  bytes: number;
  slice(at: number): Promise<Buffer>;
}

/** Reads the first bytes before it resolves, so that an unavailable store still gives a clean refusal. */
export async function readRange(
  pieces: PieceCache,
  file: FileOwner,
  { start, end }: ByteRange,
): Promise<Buffer | SlicedFile> {
  if (start === end) return Buffer.alloc(0);
  const first = await pieces.read(file, start, end);
  if (end - start > wholeBytesMax) {
    return { bytes: end - start, slice: (at: number) => pieces.read(file, start + at, end) };
  }
  // The range crosses at most one edge of a piece.
  if (first.length === end - start) return first;
  return Buffer.concat([first, await pieces.read(file, start + first.length, end)]);
}

/** Reads the whole range into memory; the caller limits its size. */
export async function readAll(pieces: PieceCache, file: FileOwner, range: ByteRange): Promise<Buffer> {
  const part = await readRange(pieces, file, range);
  if (Buffer.isBuffer(part)) return part;
  const bytes = Buffer.allocUnsafe(part.bytes);
  for (let at = 0; at < part.bytes; ) at += (await part.slice(at)).copy(bytes, at);
  return bytes;
}

/** Returns the file in base64, as the value of the last member of a JSON object whose other members are `members`. */
export function base64Member(
  pieces: PieceCache,
  file: FileOwner,
  fileBytes: number,
  members: object,
  name: string,
): SlicedFile {
  const before = Buffer.from(`${JSON.stringify(members).slice(0, -1)},${JSON.stringify(name)}:"`);
  const after = Buffer.from('"}');
  const textBytes = 4 * Math.ceil(fileBytes / 3);
  return {
    bytes: before.length + textBytes + after.length,
    async slice(at: number): Promise<Buffer> {
      if (at < before.length) return before.subarray(at);
      const textAt = at - before.length;
      if (textAt >= textBytes) return after.subarray(textAt - textBytes);
      // Slices end at whole groups of three bytes, so each slice begins at such a group.
      const start = (textAt / 4) * 3;
      const end = Math.min(start + base64SliceBytes, fileBytes);
      const first = await pieces.read(file, start, end);
      const rest = first.length < end - start ? [await pieces.read(file, start + first.length, end)] : [];
      return Buffer.from(Buffer.concat([first, ...rest]).toString('base64'), 'latin1');
    },
  };
}

/** A multiple of three, smaller than a piece. */
const base64SliceBytes = 3 * 8 * 1024;
