/**
 * The devices that this worker knows, one object each. The token cache, sessions and children of gateways share the
 * object, so all of them see a change of the device. A holder that adopts a device releases it once; the last release
 * removes the device.
 */
import { assert } from '../base/errors.ts';
import { CachedDevice, type DeviceRow } from './model/cached-device.ts';

export class LocalDevices {
  readonly #devices = new Map<number, CachedDevice>();

  get size(): number {
    return this.#devices.size;
  }

  get(number: number): CachedDevice | undefined {
    return this.#devices.get(number);
  }

  /**
   * Returns the device, which the caller releases once. A newer row updates the known device. A row that is a device
   * already, of a cache, becomes the known device itself when there is none. A server of PostgreSQL that took over
   * without its last devices may give the number of one of them to another device: the holders of the lost device keep
   * it.
   */
  adopt(row: DeviceRow): CachedDevice {
    let device = this.#devices.get(row.number);
    if (device?.id === row.id) {
      device.refresh(row);
    } else {
      device = row instanceof CachedDevice ? row : new CachedDevice(row);
      this.#devices.set(row.number, device);
    }
    device.holders += 1;
    return device;
  }

  release(device: CachedDevice): void {
    assert(device.holders > 0, 'a device is released as often as it was adopted');
    device.holders -= 1;
    if (device.holders === 0 && this.#devices.get(device.number) === device) this.#devices.delete(device.number);
  }

  /** Updates a known device with a row of the store. */
  refresh(row: DeviceRow): void {
    const device = this.#devices.get(row.number);
    if (device?.id === row.id) device.refresh(row);
  }
}
