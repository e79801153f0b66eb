/**
 * Keeps the devices that a worker knows by token, about 100 bytes each: their rows are records outside the heap, found
 * by the digest of the token. `TokenCache` is the only user. A record has all that a request may need of its device
 * except the gateway that made the device. When the table is full, a new device replaces an arbitrary one.
 */
import { assert } from '../../base/errors.ts';
import type { DeviceRow } from '../model/cached-device.ts';
import { RecordIndex } from './record-index.ts';
import { chunkOf, RecordMemory, unitBytes, unitsMax, wordOf } from './record-memory.ts';
import { putUuid, uuidBytes, uuidText } from './uuid-bytes.ts';

/** A digest: four words of 32 bits. */
export interface Digest {
  readonly d0: number;
  readonly d1: number;
  readonly d2: number;
  readonly d3: number;
}

/** A device as bytes; one object is used again for each device. */
export interface EncodedDevice {
  bytes: Buffer;
  /** Offsets in `bytes`. The tenant is followed by the profile. */
  id: number;
  tenant: number;
  /** -1 = no customer. */
  customer: number;
  name: number;
  nameBytes: number;
  number: number;
  version: number;
  isGateway: boolean;
  isConfined: boolean;
}

/*
 * A record:  digest 16 | number 8, its upper half with the flags | origin 4 | version 4 | bytes of the name 4 | id 16 |
 *            customer 16, if there is one | name
 */
const headWords = 9;
const headBytes = headWords * 4;
const flag = { customer: 1 << 21, gateway: 1 << 22, confined: 1 << 23, loaded: 1 << 24 } as const;
const numberMask = (1 << 21) - 1;
/** A name of 255 characters has fewer. A device with a longer name is not kept. */
const nameBytesMax = unitsMax * unitBytes - headBytes - 2 * uuidBytes;

export class DeviceTable {
  readonly #sizeMax: number;
  readonly #store = new RecordMemory();
  readonly #index = new RecordIndex(this.#store);
  readonly #origins = new Origins();
  readonly #scratch = emptyDevice();
  #loaded = 0;

  constructor(sizeMax: number) {
    this.#sizeMax = sizeMax;
  }

  get size(): number {
    return this.#index.size;
  }

  /** The number of devices whose digest is that of the file. */
  get loaded(): number {
    return this.#loaded;
  }

  get byteSize(): number {
    return this.#store.byteSize + this.#index.byteSize;
  }

  /** The largest number of entries that one call has moved. */
  get movedMax(): number {
    return this.#index.movedMax;
  }

  /** Returns the place of the device, valid until the next change of the table; 0 = unknown. */
  find({ d0, d1, d2, d3 }: Digest): number {
    return this.#index.find(d0, d1, d2, d3);
  }

  row(place: number): DeviceRow {
    const words = this.#store.words[chunkOf(place)]!;
    const bytes = this.#store.bytes[chunkOf(place)]!;
    const at = wordOf(place);
    const high = words[at + 5]!;
    const origin = words[at + 6]!;
    let next = at * 4 + headBytes;
    const id = uuidText(bytes, next);
    next += uuidBytes;
    let customerId: string | null = null;
    if ((high & flag.customer) !== 0) {
      customerId = uuidText(bytes, next);
      next += uuidBytes;
    }
    return {
      number: (high & numberMask) * 2 ** 32 + words[at + 4]!,
      id,
      tenantId: this.#origins.tenants[origin]!,
      customerId,
      profileId: this.#origins.profiles[origin]!,
      name: bytes.toString('utf8', next, next + words[at + 8]!),
      version: words[at + 7]!,
      isGateway: (high & flag.gateway) !== 0,
      isConfined: (high & flag.confined) !== 0,
    };
  }

  /** Adds a device, or replaces the one of this digest. */
  set(digest: Digest, row: DeviceRow): void {
    const former = this.find(digest);
    if (former !== 0) this.#remove(former);
    if (Buffer.byteLength(row.name) > nameBytesMax) return;
    encodeRow(row, this.#scratch);
    while (this.size >= this.#sizeMax) this.#remove(this.#index.any());
    this.#add(digest, this.#scratch, 0);
  }

  /** Adds a device of the file under the file's digest, or replaces it. Does nothing when the table is full. */
  load(digest: Digest, device: EncodedDevice): void {
    const former = this.find(digest);
    if (former !== 0) this.#remove(former);
    if (this.size >= this.#sizeMax || device.nameBytes > nameBytesMax) return;
    this.#add(digest, device, flag.loaded);
    this.#loaded += 1;
  }

  /** Gives a device of the file the digest of this process, which no other device has. Returns the place. */
  adopt(place: number, { d0, d1, d2, d3 }: Digest): number {
    const words = this.#store.words[chunkOf(place)]!;
    const at = wordOf(place);
    assert((words[at + 5]! & flag.loaded) !== 0, 'a device of the file is adopted once');
    this.#index.remove(place);
    words[at] = d0;
    words[at + 1] = d1;
    words[at + 2] = d2;
    words[at + 3] = d3;
    words[at + 5]! &= ~flag.loaded;
    this.#loaded -= 1;
    this.#index.add(place);
    return place;
  }

  remove(digest: Digest): void {
    const place = this.find(digest);
    if (place !== 0) this.#remove(place);
  }

  /** Removes the devices of the file from some parts of the table. Returns the next part, or undefined at the end. */
  unload(first: number, count: number): number | undefined {
    const end = Math.min(first + count, RecordIndex.parts);
    for (let part = first; part < end; part += 1) {
      for (const place of this.#index.places(part)) {
        if ((this.#store.words[chunkOf(place)]![wordOf(place) + 5]! & flag.loaded) !== 0) this.#remove(place);
      }
    }
    return end < RecordIndex.parts ? end : undefined;
  }

  #add({ d0, d1, d2, d3 }: Digest, device: EncodedDevice, loaded: number): void {
    const { bytes: source, id, customer, name, nameBytes } = device;
    const place = this.#store.take(unitsOf(customer >= 0, nameBytes));
    const words = this.#store.words[chunkOf(place)]!;
    const bytes = this.#store.bytes[chunkOf(place)]!;
    const at = wordOf(place);
    words[at] = d0;
    words[at + 1] = d1;
    words[at + 2] = d2;
    words[at + 3] = d3;
    words[at + 4] = device.number % 2 ** 32;
    words[at + 5] =
      Math.floor(device.number / 2 ** 32) |
      (customer >= 0 ? flag.customer : 0) |
      (device.isGateway ? flag.gateway : 0) |
      (device.isConfined ? flag.confined : 0) |
      loaded;
    words[at + 6] = this.#origins.take(source, device.tenant);
    words[at + 7] = device.version;
    words[at + 8] = nameBytes;
    let next = at * 4 + headBytes;
    source.copy(bytes, next, id, id + uuidBytes);
    next += uuidBytes;
    if (customer >= 0) {
      source.copy(bytes, next, customer, customer + uuidBytes);
      next += uuidBytes;
    }
    source.copy(bytes, next, name, name + nameBytes);
    this.#index.add(place);
  }

  #remove(place: number): void {
    const words = this.#store.words[chunkOf(place)]!;
    const at = wordOf(place);
    const high = words[at + 5]!;
    this.#index.remove(place);
    this.#origins.give(words[at + 6]!);
    if ((high & flag.loaded) !== 0) this.#loaded -= 1;
    this.#store.give(place, unitsOf((high & flag.customer) !== 0, words[at + 8]!));
  }
}

function unitsOf(hasCustomer: boolean, nameBytes: number): number {
  return Math.ceil((headBytes + uuidBytes + (hasCustomer ? uuidBytes : 0) + nameBytes) / unitBytes);
}

/** Pairs of a tenant and a profile, numbered, because many devices share one. A pair without devices is forgotten. */
class Origins {
  readonly tenants: string[] = [];
  readonly profiles: string[] = [];
  readonly #counts: number[] = [];
  readonly #keys: string[] = [];
  readonly #numbers = new Map<string, number>();
  readonly #free: number[] = [];
  /** The last pair: most devices have the same pair as the previous device. */
  readonly #lastBytes = Buffer.alloc(2 * uuidBytes);
  #last = -1;

  /** `at`: the place of the tenant in `bytes`; the profile follows. */
  take(bytes: Buffer, at: number): number {
    if (this.#last < 0 || !this.#isLast(bytes, at)) {
      const key = bytes.toString('latin1', at, at + 2 * uuidBytes);
      this.#last = this.#numbers.get(key) ?? this.#add(key, bytes, at);
      bytes.copy(this.#lastBytes, 0, at, at + 2 * uuidBytes);
    }
    this.#counts[this.#last]! += 1;
    return this.#last;
  }

  give(number: number): void {
    this.#counts[number]! -= 1;
    if (this.#counts[number] !== 0) return;
    this.#numbers.delete(this.#keys[number]!);
    this.#free.push(number);
    if (this.#last === number) this.#last = -1;
  }

  #isLast(bytes: Buffer, at: number): boolean {
    for (let i = 0; i < 2 * uuidBytes; i += 1) if (bytes[at + i] !== this.#lastBytes[i]) return false;
    return true;
  }

  #add(key: string, bytes: Buffer, at: number): number {
    const number = this.#free.pop() ?? this.#keys.length;
    this.#numbers.set(key, number);
    this.#keys[number] = key;
    this.#counts[number] = 0;
    this.tenants[number] = uuidText(bytes, at);
    this.profiles[number] = uuidText(bytes, at + uuidBytes);
    return number;
  }
}

export function emptyDevice(): EncodedDevice {
  const offsets = { id: 0, tenant: uuidBytes, customer: -1, name: 4 * uuidBytes, nameBytes: 0 };
  return {
    bytes: Buffer.alloc(4 * uuidBytes + nameBytesMax),
    ...offsets,
    number: 0,
    version: 0,
    isGateway: false,
    isConfined: false,
  };
}

/** Writes a row into a device of `emptyDevice`. */
function encodeRow(row: DeviceRow, into: EncodedDevice): void {
  const { bytes } = into;
  putUuid(row.id, bytes, into.id);
  putUuid(row.tenantId, bytes, into.tenant);
  putUuid(row.profileId, bytes, into.tenant + uuidBytes);
  into.customer = row.customerId === null ? -1 : 3 * uuidBytes;
  if (row.customerId !== null) putUuid(row.customerId, bytes, into.customer);
  into.nameBytes = bytes.write(row.name, into.name);
  into.number = row.number;
  into.version = row.version;
  into.isGateway = row.isGateway ?? false;
  into.isConfined = row.isConfined ?? false;
}
