/**
 * Token → device, for the devices that sent lately. A Map reads five places of memory for a token that it lacks, and
 * most devices of a large fleet did not send lately. Here a token has one set of four slots, and the hashes of a set
 * lie side by side. A device enters a full set in the place of another one of this set.
 */
import { randomBytes } from 'node:crypto';
import { assert } from '../base/errors.ts';
import type { CachedDevice } from './model/cached-device.ts';

const slotsOfSet = 4;
const seed = randomBytes(4).readInt32LE();

export class RecentDevices {
  readonly #ways: number;
  readonly #shift: number;
  /** For each slot: the hash of its token; 0 = free. */
  readonly #hashes: Uint32Array;
  readonly #tokens: string[];
  readonly #devices: (CachedDevice | undefined)[];
  /** For each set: the number of devices that were replaced, which chooses the next one. */
  readonly #replaced: Uint8Array;
  /** The hash of the token that `get` searched last. */
  #hash = 0;
  #size = 0;

  /** `slots`: a power of two. */
  constructor(slots: number) {
    assert(slots > 1 && Number.isInteger(Math.log2(slots)), 'the number of slots is a power of two');
    this.#ways = Math.min(slots, slotsOfSet);
    const sets = slots / this.#ways;
    this.#shift = 32 - Math.log2(sets);
    this.#hashes = new Uint32Array(slots);
    this.#tokens = new Array<string>(slots).fill('');
    this.#devices = new Array<CachedDevice | undefined>(slots).fill(undefined);
    this.#replaced = new Uint8Array(sets);
  }

  get size(): number {
    return this.#size;
  }

  get(token: string): CachedDevice | undefined {
    const hash = hashOf(token);
    this.#hash = hash;
    const slot = this.#slotOf(token, hash);
    return slot === -1 ? undefined : this.#devices[slot];
  }

  /** True when the token that `get` searched last, and did not find, would replace another one. */
  get isSetFull(): boolean {
    return this.#freeSlot(this.#hash) === -1;
  }

  /** Adds a device, or replaces that of this token. Returns the device that left. */
  set(token: string, device: CachedDevice): CachedDevice | undefined {
    const hash = hashOf(token);
    let slot = this.#slotOf(token, hash);
    if (slot === -1) slot = this.#freeSlot(hash);
    if (slot === -1) {
      const set = this.#setOf(hash);
      slot = set * this.#ways + (this.#replaced[set]! % this.#ways);
      this.#replaced[set]! += 1;
    }
    const former = this.#devices[slot];
    this.#hashes[slot] = hash;
    this.#tokens[slot] = token;
    this.#devices[slot] = device;
    if (former === undefined) this.#size += 1;
    return former;
  }

  /** Removes and returns the device of this token. */
  take(token: string): CachedDevice | undefined {
    const slot = this.#slotOf(token, hashOf(token));
    if (slot === -1) return undefined;
    const device = this.#devices[slot];
    this.#hashes[slot] = 0;
    this.#tokens[slot] = '';
    this.#devices[slot] = undefined;
    this.#size -= 1;
    return device;
  }

  /** Removes and returns all devices. */
  takeAll(): CachedDevice[] {
    const devices = this.#devices.filter((device) => device !== undefined);
    this.#hashes.fill(0);
    this.#tokens.fill('');
    this.#devices.fill(undefined);
    this.#size = 0;
    return devices;
  }

  #setOf(hash: number): number {
    // A shift by 32 bits would change nothing.
    return this.#shift === 32 ? 0 : hash >>> this.#shift;
  }

  #slotOf(token: string, hash: number): number {
    const first = this.#setOf(hash) * this.#ways;
    for (let slot = first; slot < first + this.#ways; slot += 1) {
      if (this.#hashes[slot] === hash && this.#tokens[slot] === token) return slot;
    }
    return -1;
  }

  #freeSlot(hash: number): number {
    const first = this.#setOf(hash) * this.#ways;
    for (let slot = first; slot < first + this.#ways; slot += 1) if (this.#hashes[slot] === 0) return slot;
    return -1;
  }
}

/** Returns a hash other than 0. Its upper bits choose the set. */
function hashOf(token: string): number {
  let hash = seed;
  for (let i = 0; i < token.length; i += 1) hash = Math.imul(hash ^ token.charCodeAt(i), 0x01000193);
  hash = Math.imul(hash ^ (hash >>> 15), 0x2c1b3c6d);
  return ((hash ^ (hash >>> 13)) | 1) >>> 0;
}
