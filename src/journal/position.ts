/**
 * The position of the journal, in the file `position`. Two slots of 4 096 bytes are written in turn, each with its own
 * number and crc, so a torn write or a bad sector leaves the other slot. The stored position may be too low (rows are
 * idempotent), never too high.
 */
import { crc32 } from 'node:zlib';
import { StartError } from '../base/errors.ts';
import { type Disk, type DiskFile, readWholeAround, replaceWhole } from './disk.ts';
import { type Lane, lanes } from './segment.ts';

/** The place of the first frame that is not confirmed. */
export interface LaneCursor {
  epoch: number;
  seq: number;
  offset: number;
}

export interface Position {
  cursors: [LaneCursor, LaneCursor];
  /** Highest order number that was durable when the position was written. */
  orderHigh: bigint;
}

const slotBytes = 4096;
const magic = Buffer.from('MILLPOS1', 'latin1');
/** The magic of a later version differs in its last byte. */
const newerMagic = /^MILLPOS[2-9]$/;
const usedBytes = 64;

function encode(position: Position, number: number): Buffer {
  const slot = Buffer.alloc(slotBytes);
  magic.copy(slot);
  slot.writeDoubleLE(number, 8);
  slot.writeBigUInt64LE(position.orderHigh, 16);
  for (const lane of lanes) {
    const cursor = position.cursors[lane];
    slot.writeUInt32LE(cursor.epoch, 24 + lane * 16);
    slot.writeUInt32LE(cursor.seq, 28 + lane * 16);
    slot.writeDoubleLE(cursor.offset, 32 + lane * 16);
  }
  slot.writeUInt32LE(crc32(slot.subarray(0, usedBytes - 4)), usedBytes - 4);
  return slot;
}

function decode(slot: Buffer): { number: number; position: Position } | undefined {
  if (slot.length < usedBytes || !slot.subarray(0, 8).equals(magic)) return undefined;
  if (crc32(slot.subarray(0, usedBytes - 4)) !== slot.readUInt32LE(usedBytes - 4)) return undefined;
  const cursor = (lane: Lane): LaneCursor => ({
    epoch: slot.readUInt32LE(24 + lane * 16),
    seq: slot.readUInt32LE(28 + lane * 16),
    offset: slot.readDoubleLE(32 + lane * 16),
  });
  const position = { cursors: [cursor(0), cursor(1)] as [LaneCursor, LaneCursor], orderHigh: slot.readBigUInt64LE(16) };
  return { number: slot.readDoubleLE(8), position };
}

/** Returns the bytes of a whole file, for a copy of a journal. */
export function positionFile(position: Position): Buffer {
  const slot = encode(position, 1);
  return Buffer.concat([slot, slot]);
}

export function startOfJournal(): Position {
  return {
    cursors: [
      { epoch: 0, seq: 0, offset: 0 },
      { epoch: 0, seq: 0, offset: 0 },
    ],
    orderHigh: 0n,
  };
}

/** Returns the position of a directory; undefined when there is none. Changes nothing. */
export async function readPosition(disk: Disk, dir: string): Promise<Position | undefined> {
  return (await newestSlot(disk, `${dir}/position`))?.position;
}

/** A slot that cannot be read is ignored. */
async function newestSlot(disk: Disk, path: string): Promise<{ number: number; position: Position } | undefined> {
  const bytes = (await readWholeAround(disk, path)) ?? Buffer.alloc(0);
  const halves = [bytes.subarray(0, slotBytes), bytes.subarray(slotBytes)];
  if (halves.some((half) => newerMagic.test(half.toString('latin1', 0, 8)))) {
    throw new StartError(`${path} was written by a later version of Millrace: start that version.`);
  }
  const slots = halves.map(decode).filter((slot) => slot !== undefined);
  slots.sort((a, b) => b.number - a.number);
  return slots[0];
}

export class PositionFile {
  readonly #disk: Disk;
  readonly #path: string;
  #file: DiskFile | undefined;
  #number = 0;
  /** The content at the opening; undefined when the file is missing or both slots are bad. */
  found: Position | undefined;

  private constructor(disk: Disk, path: string) {
    this.#disk = disk;
    this.#path = path;
  }

  static async open(disk: Disk, dir: string): Promise<PositionFile> {
    const self = new PositionFile(disk, `${dir}/position`);
    const newest = await newestSlot(disk, self.#path);
    if (newest) {
      self.#number = newest.number;
      self.found = newest.position;
      // Opens the existing file: a full disk has no room for a new one, and segments must still be removed.
      self.#file = await disk.open(self.#path, 'log');
    }
    return self;
  }

  /**
   * Durable when it returns. After an error the next call makes a new file: a failed sync is final for its descriptor.
   */
  async write(position: Position): Promise<void> {
    const number = this.#number + 1;
    const slot = encode(position, number);
    if (this.#file) {
      try {
        await this.#file.write([slot], (number % 2) * slotBytes);
      } catch (error) {
        const file = this.#file;
        this.#file = undefined;
        await file.close().catch(() => {});
        throw error;
      }
    } else {
      await replaceWhole(this.#disk, this.#path, [slot, slot]);
      this.#file = await this.#disk.open(this.#path, 'log');
    }
    this.#number = number;
  }

  async close(): Promise<void> {
    const file = this.#file;
    this.#file = undefined;
    await file?.close();
  }
}
