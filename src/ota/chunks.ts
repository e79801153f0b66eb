/**
 * Parts of package files: which bytes a chunk is, and the pieces of the store in which they lie. Pieces are kept in
 * memory up to a cap, those used last; a piece that many ask for at once is loaded once. Tenants take turns with loads.
 */
import { assert, type Fault, unavailable } from '../base/errors.ts';
import { FairQueue } from '../base/fair-queue.ts';

/**
 * Bytes of a piece in the store; the last one of a file may be shorter. Stays for ever. A piece comes from the database
 * driver within one of its 64 kB reads: 256 kB left four times as much garbage for each byte.
 */
export const pieceBytes = 32 * 1024;

/** Bytes [start, end) of a file. */
export interface ByteRange {
  start: number;
  end: number;
}

/** Chunk `chunk` of `size` bytes, as far as the file has it; without a size the whole file. */
export function chunkRange(fileBytes: number, size: number, chunk: number): ByteRange {
  if (size === 0) return { start: 0, end: fileBytes };
  // At most 2^62: inexact beyond 2^53, but then far beyond the end of any file.
  const start = Math.min(size * chunk, fileBytes);
  return { start, end: Math.min(start + size, fileBytes) };
}

/** Which file: a package and the tenant that owns it. */
export interface FileOwner {
  readonly id: string;
  readonly tenantId: string;
}

interface WaitingLoad {
  run(): void;
  refuse(fault: Fault): void;
}

export type LoadPiece = (packageId: string, number: number) => Promise<Buffer>;

export class PieceCache {
  readonly #load: LoadPiece;
  readonly #bytesMax: number;
  /** Loads that may wait, and those that run: each costs several times its piece until it is done. */
  readonly #waiting: FairQueue<WaitingLoad>;
  readonly #atOnceMax: number;
  #running = 0;
  /** The piece used last is last. */
  readonly #pieces = new Map<string, Buffer>();
  readonly #loading = new Map<string, Promise<Buffer>>();
  #bytes = 0;

  constructor(load: LoadPiece, bytesMax: number, loadingMax: number) {
    assert(bytesMax >= pieceBytes, 'there is room for a piece');
    this.#load = load;
    this.#bytesMax = bytesMax;
    this.#atOnceMax = Math.min(4, loadingMax);
    this.#waiting = new FairQueue(loadingMax - this.#atOnceMax);
  }

  get bytes(): number {
    return this.#bytes;
  }

  /** The bytes of a file from `at` to the end of their piece, or to `end`; a view that must not be changed. */
  async read(file: FileOwner, at: number, end: number): Promise<Buffer> {
    const number = Math.floor(at / pieceBytes);
    const piece = await this.#piece(file, number);
    const start = number * pieceBytes;
    return piece.subarray(at - start, Math.min(end - start, piece.length));
  }

  /** Bytes of a file if they lie in one piece that is in memory: then no promise is made for them. */
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

  /** The next load that waits takes the place of the one that is done. */
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

/** Up to this an answer is given as a whole. */
export const wholeBytesMax = pieceBytes;

/** Many bytes, to be read slice by slice: each begins where the last one ended. */
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
  // Over the edge of one piece at most.
  if (first.length === end - start) return first;
  return Buffer.concat([first, await pieces.read(file, start + first.length, end)]);
}

/** All of it in memory; the caller bounds it. */
export async function readAll(pieces: PieceCache, file: FileOwner, range: ByteRange): Promise<Buffer> {
  const part = await readRange(pieces, file, range);
  if (Buffer.isBuffer(part)) return part;
  const bytes = Buffer.allocUnsafe(part.bytes);
  for (let at = 0; at < part.bytes; ) at += (await part.slice(at)).copy(bytes, at);
  return bytes;
}

/** The file in base64, as the value of the last member of a JSON object whose other members are `members`. */
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
      // Slices end at whole groups of three bytes, so each begins at one.
      const start = (textAt / 4) * 3;
      const end = Math.min(start + base64SliceBytes, fileBytes);
      const first = await pieces.read(file, start, end);
      const rest = first.length < end - start ? [await pieces.read(file, start + first.length, end)] : [];
      return Buffer.from(Buffer.concat([first, ...rest]).toString('base64'), 'latin1');
    },
  };
}

/** A multiple of three, and less than a piece. */
const base64SliceBytes = 3 * 8 * 1024;
