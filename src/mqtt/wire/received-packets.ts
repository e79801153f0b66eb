/**
 * Cuts received bytes into whole packets. The length is checked at the header, before any byte is kept. A packet that
 * arrived whole is a view; a packet that arrived in parts is copied once. The fields describe the current packet until
 * the next call. A packet above the cap is kept or skipped as a `LargePacket`, when the caller opens it.
 */
import { LargePacket, type LargeStep, type Room } from './large-packet.ts';

export type Step = 'packet' | 'more' | 'malformed' | 'too_large' | LargeStep;

const headerBytesMax = 5;

export class ReceivedPackets {
  /** The current packet: its first byte (type and flags), and its body `buffer[start..end)`. */
  first = 0;
  buffer: Buffer = nothing;
  start = 0;
  end = 0;
  /** Offset of the current packet in `buffer`. */
  #begin = 0;
  #bytes: Buffer = nothing;
  #at = 0;
  /** A packet, or only its header, that arrived in part; `nothing` while `#large` is open. */
  #partial: Buffer | undefined = undefined;
  /** A large packet that is not whole yet. */
  #large: LargePacket | undefined = undefined;
  /** The current packet, if it is a large one whose room is not taken yet. */
  #whole: LargePacket | undefined = undefined;
  #filled = 0;

  get type(): number {
    return this.first >> 4;
  }

  get flags(): number {
    return this.first & 0x0f;
  }

  /** The size of the packet for which `next` returned 'too_large'. */
  get declaredBytes(): number {
    const isPartial = this.#partial !== undefined;
    const at = isPartial ? 0 : this.#at;
    const start = readLength(isPartial ? this.#partial!.subarray(0, this.#filled) : this.#bytes, at);
    return start - at + lengthRead;
  }

  /** The large packet that is being read. */
  get large(): LargePacket | undefined {
    return this.#large;
  }

  /** True when the current packet is in memory of its own, which holds room. */
  get isOwned(): boolean {
    return this.#whole !== undefined;
  }

  /** Returns the room of the current packet, which the caller releases; undefined for a packet that holds none. */
  takeRoom(): Room | undefined {
    if (this.#whole === undefined) return undefined;
    const room = this.#whole.takeRoom();
    this.#whole = undefined;
    return room;
  }

  /** Adds received bytes, which are used until `keep`, or until all packets were returned. */
  feed(bytes: Buffer): void {
    this.#bytes = this.#at < this.#bytes.length ? Buffer.concat([this.#bytes.subarray(this.#at), bytes]) : bytes;
    this.#at = 0;
  }

  /** True when the next packet begins with this byte, or has not begun. */
  mayBe(first: number): boolean {
    if (this.#partial !== undefined) return this.#partial[0] === first;
    return this.#at >= this.#bytes.length || this.#bytes[this.#at] === first;
  }

  /**
   * Returns the next packet, if it is whole and at most `bytesMax` long. After 'too_large' `first` is the first byte of
   * the packet, and the caller may open it with `openLarge`.
   */
  next(bytesMax: number): Step {
    if (this.#partial !== undefined) return this.#complete(bytesMax);
    const bytes = this.#bytes;
    const at = this.#at;
    if (at >= bytes.length) return this.#more();
    let start = at + 1;
    let length = bytes[start]!;
    if (start < bytes.length && length < 0x80) {
      start += 1;
    } else {
      const header = readLength(bytes, at);
      if (header === incomplete) return this.#cut(Buffer.allocUnsafe(headerBytesMax));
      if (header === invalid) return 'malformed';
      length = lengthRead;
      start = header;
    }
    const end = start + length;
    if (end - at > bytesMax) {
      this.first = bytes[at]!;
      return 'too_large';
    }
    if (end > bytes.length) return this.#cut(Buffer.allocUnsafe(end - at));
    this.first = bytes[at]!;
    this.buffer = bytes;
    this.#begin = at;
    this.start = start;
    this.end = end;
    this.#at = end;
    return 'packet';
  }

  /** Opens the packet that is too large; its head is `headBytesMax` bytes of its body. Returns the packet. */
  openLarge(headBytesMax: number): LargePacket {
    const isPartial = this.#partial !== undefined;
    const bytes = isPartial ? this.#partial!.subarray(0, this.#filled) : this.#bytes;
    const at = isPartial ? 0 : this.#at;
    const start = readLength(bytes, at);
    this.#large = new LargePacket(bytes.subarray(at, start), lengthRead, headBytesMax);
    if (!isPartial) this.#at = start;
    this.#partial = nothing;
    return this.#large;
  }

  /** Makes `next` return the current packet again. */
  unread(): void {
    if (this.#whole !== undefined) {
      this.#large = this.#whole;
      this.#whole = undefined;
      this.#partial = nothing;
      return;
    }
    if (this.buffer === this.#bytes) {
      this.#at = this.#begin;
      return;
    }
    const packet = this.buffer.subarray(this.#begin, this.end);
    this.#bytes = Buffer.concat([packet, this.#bytes.subarray(this.#at)]);
    this.#at = 0;
  }

  /** Copies bytes that were not returned yet, because the caller reuses its buffer. */
  keep(): void {
    this.#bytes = this.#at < this.#bytes.length ? Buffer.from(this.#bytes.subarray(this.#at)) : nothing;
    this.#at = 0;
    this.buffer = nothing;
  }

  /** Drops all bytes: no further packet is returned. */
  clear(): void {
    this.#bytes = nothing;
    this.#at = 0;
    this.#partial = undefined;
    this.#large?.release();
    this.#large = undefined;
    this.takeRoom()?.release();
    this.buffer = nothing;
  }

  /** Drops every view of the caller's buffer. */
  #more(): Step {
    this.#bytes = nothing;
    this.#at = 0;
    this.buffer = nothing;
    return 'more';
  }

  #cut(partial: Buffer): Step {
    this.#filled = this.#bytes.copy(partial, 0, this.#at);
    this.#partial = partial;
    return this.#more();
  }

  #complete(bytesMax: number): Step {
    if (this.#large !== undefined) return this.#completeLarge(this.#large);
    let partial = this.#partial!;
    if (partial.length === headerBytesMax) {
      // The header may have been incomplete. A packet of five bytes in total is whole and takes this branch too.
      const step = this.#completeHeader(bytesMax);
      if (step !== undefined) return step;
      partial = this.#partial!;
    }
    const copied = this.#bytes.copy(partial, this.#filled, this.#at);
    this.#filled += copied;
    this.#at += copied;
    if (this.#filled < partial.length) return this.#more();
    this.#partial = undefined;
    this.first = partial[0]!;
    this.buffer = partial;
    this.#begin = 0;
    this.start = readLength(partial, 0);
    this.end = partial.length;
    return 'packet';
  }

  #completeLarge(large: LargePacket): Step {
    const step = large.add(this.#bytes, this.#at);
    this.#at += large.taken;
    if (step === 'more') return this.#more();
    if (step !== 'packet' && step !== 'skipped') return step;
    this.#large = undefined;
    this.#partial = undefined;
    if (step === 'skipped') return step;
    this.takeRoom()?.release();
    this.#whole = large;
    this.first = large.buffer[0]!;
    this.buffer = large.buffer;
    this.#begin = 0;
    this.start = large.bodyStart;
    this.end = large.bytes;
    return step;
  }

  /** Completes the header byte by byte, up to five bytes; the partial buffer then has the size of its packet. */
  #completeHeader(bytesMax: number): Step | undefined {
    const header = this.#partial!;
    for (;;) {
      const start = readLength(header.subarray(0, this.#filled), 0);
      if (start === invalid) return 'malformed';
      if (start !== incomplete) {
        const length = start + lengthRead;
        if (length > bytesMax) {
          this.first = header[0]!;
          return 'too_large';
        }
        if (length === header.length) return undefined;
        this.#partial = Buffer.allocUnsafe(length);
        // A partial header is followed only by bytes of its own.
        header.copy(this.#partial, 0, 0, this.#filled);
        return undefined;
      }
      if (this.#at >= this.#bytes.length) return this.#more();
      header[this.#filled] = this.#bytes[this.#at]!;
      this.#filled += 1;
      this.#at += 1;
    }
  }
}

const nothing = Buffer.alloc(0);
const incomplete = -1;
const invalid = -2;
/** The second result of `readLength`. */
let lengthRead = 0;

/**
 * Returns the start of the body of the packet at `at`; `lengthRead` is its length. Only the shortest encoding is valid.
 */
function readLength(bytes: Buffer, at: number): number {
  let value = 0;
  for (let i = 0; i < 4; i += 1) {
    const position = at + 1 + i;
    if (position >= bytes.length) return incomplete;
    const byte = bytes[position]!;
    value += (byte & 0x7f) * 2 ** (7 * i);
    if (byte >= 0x80) continue;
    if (byte === 0 && i > 0) return invalid;
    lengthRead = value;
    return position + 1;
  }
  return invalid;
}
