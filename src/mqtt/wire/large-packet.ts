/**
 * A packet above the usual cap, between its fixed header and its last byte. Its head is read first; then the reader
 * either keeps the packet, in room that grows with the received bytes, or counts the remaining bytes without keeping
 * them. `ReceivedPackets` makes one for each such packet.
 */
import { assert } from '../../base/errors.ts';

/** The bytes that a packet holds in this process. */
export interface Room {
  /** Holds `bytes` in all; false when there is no room. */
  grow(bytes: number): boolean;
  release(): void;
}

/** `head`: the head is read, and `keep` or `skip` must be called. `no_room`: the packet cannot grow now. */
export type LargeStep = 'head' | 'more' | 'no_room' | 'packet' | 'skipped';

/** The first size of a buffer. */
const firstBytes = 64 * 1024;

export class LargePacket {
  /** All bytes of the packet. */
  readonly bytes: number;
  /** Offset of the body. */
  readonly bodyStart: number;
  /** The head, later all bytes of a packet that is kept. */
  buffer: Buffer;
  /** Received bytes. */
  filled: number;
  /** Bytes that the last call of `add` used. */
  taken = 0;
  readonly #headBytes: number;
  #mode: 'head' | 'undecided' | 'kept' | 'skipped' = 'head';
  #room: Room | undefined = undefined;
  #onSkipped: ((bytes: Buffer) => void) | undefined = undefined;

  /** `headBytesMax`: bytes of the body that belong to the head. */
  constructor(header: Buffer, bodyBytes: number, headBytesMax: number) {
    this.bytes = header.length + bodyBytes;
    this.bodyStart = header.length;
    this.#headBytes = header.length + Math.min(bodyBytes, headBytesMax);
    this.buffer = Buffer.allocUnsafeSlow(this.#headBytes);
    this.filled = header.copy(this.buffer);
  }

  /** Uses bytes from `from` on; `taken` is their number. */
  add(bytes: Buffer, from: number): LargeStep {
    switch (this.#mode) {
      case 'head':
        this.#copy(bytes, from, this.#headBytes);
        if (this.filled < this.#headBytes) return 'more';
        this.#mode = 'undecided';
        return 'head';
      case 'kept':
        this.taken = 0;
        if (!this.#hasRoom(Math.min(this.bytes, this.filled + bytes.length - from))) return 'no_room';
        this.#copy(bytes, from, this.bytes);
        return this.filled === this.bytes ? 'packet' : 'more';
      case 'skipped': {
        this.taken = Math.min(bytes.length - from, this.bytes - this.filled);
        this.filled += this.taken;
        this.#onSkipped?.(bytes.subarray(from, from + this.taken));
        return this.filled === this.bytes ? 'skipped' : 'more';
      }
      case 'undecided':
        assert(false, 'a large packet is kept or skipped before more bytes are read');
    }
  }

  /** Keeps the packet in `room`. */
  keep(room: Room): void {
    this.#mode = 'kept';
    this.#room = room;
  }

  /** Counts the remaining bytes and keeps none. `onSkipped` gets each piece of them, valid during the call only. */
  skip(onSkipped?: (bytes: Buffer) => void): void {
    this.#mode = 'skipped';
    this.#onSkipped = onSkipped;
    this.release();
    this.buffer = Buffer.alloc(0);
  }

  /** Passes the room of a whole packet to the caller. */
  takeRoom(): Room | undefined {
    const room = this.#room;
    this.#room = undefined;
    return room;
  }

  release(): void {
    this.takeRoom()?.release();
  }

  /** Makes the buffer large enough for `bytes`. The buffer doubles, so it is at most twice the received bytes. */
  #hasRoom(bytes: number): boolean {
    if (bytes <= this.buffer.length) return true;
    const size = Math.min(this.bytes, Math.max(2 * bytes, firstBytes));
    if (!this.#room!.grow(size)) return false;
    const larger = Buffer.allocUnsafeSlow(size);
    this.buffer.copy(larger, 0, 0, this.filled);
    this.buffer = larger;
    return true;
  }

  #copy(bytes: Buffer, from: number, end: number): void {
    this.taken = bytes.copy(this.buffer, this.filled, from, from + end - this.filled);
    this.filled += this.taken;
  }
}
