/**
 * The devices that this worker knows, one object each: the token cache, sessions and children of gateways share it, so
 * no two of them hand out one server time twice. Whoever adopts a device releases it once; the last one lets it go.
 */
import type { Clock } from '../base/clock.ts';
import { assert } from '../base/errors.ts';
import { AgedMap } from './aged-map.ts';
import { CachedDevice, type DeviceRow, type TimeSlot } from './cached-device.ts';

export class DevicesHere {
  readonly #slot: TimeSlot;
  readonly #clock: Clock;
  readonly #devices = new Map<number, CachedDevice>();
  /** Device → last server time, of those that were let go while ahead of the clock. */
  readonly #ahead: AgedMap<number, number>;

  constructor(slot: TimeSlot, clock: Clock, aheadMax: number) {
    assert(slot.offset >= 0 && slot.offset < slot.stride, `time slot ${slot.offset} of ${slot.stride}`);
    this.#slot = slot;
    this.#clock = clock;
    this.#ahead = new AgedMap(aheadMax);
  }

  get size(): number {
    return this.#devices.size;
  }

  get(number: number): CachedDevice | undefined {
    return this.#devices.get(number);
  }

  /** To be released once. A newer row than the known one is taken over. */
  adopt(row: DeviceRow): CachedDevice {
    let device = this.#devices.get(row.number);
    if (device) {
      device.refresh(row);
    } else {
      device = new CachedDevice(row, this.#slot, this.#takeLastTs(row.number));
      this.#devices.set(row.number, device);
    }
    device.holders += 1;
    return device;
  }

  release(device: CachedDevice): void {
    assert(device.holders > 0, 'a device is released as often as it was adopted');
    device.holders -= 1;
    if (device.holders > 0) return;
    this.#devices.delete(device.number);
    // When it is loaded again it goes on behind its last server time, or a new message would replace an old one.
    if (device.lastTs >= this.#clock.now()) this.#ahead.set(device.number, device.lastTs);
  }

  /** What the store says now; nothing when the device is not known here. */
  refresh(row: DeviceRow): void {
    this.#devices.get(row.number)?.refresh(row);
  }

  #takeLastTs(number: number): number {
    const lastTs = this.#ahead.get(number) ?? 0;
    this.#ahead.delete(number);
    return lastTs;
  }
}
