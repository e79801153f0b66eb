/**
 * Rows of devices that a worker keeps, hundreds of thousands of them. The store returns each row with strings of its
 * own and with further members. So a worker keeps a copy: one small object, whose tenant, customer and profile are
 * strings that many rows share.
 */
import { FifoMap } from '../../base/fifo-map.ts';
import { limits } from '../../base/limits.ts';
import { CachedDevice, type DeviceRow } from './cached-device.ts';

/** Texts that many rows have in common. An evicted text costs the next row that has it a string, and nothing else. */
const texts = new FifoMap<string, string>(limits.sharedTextsMax);

export function compactRow(row: DeviceRow): DeviceRow {
  return {
    number: row.number,
    id: row.id,
    tenantId: sharedText(row.tenantId),
    customerId: row.customerId === null ? null : sharedText(row.customerId),
    profileId: sharedText(row.profileId),
    name: row.name,
    version: row.version,
    isGateway: row.isGateway,
    isConfined: row.isConfined,
    madeBy: row.madeBy,
  };
}

/** Returns an object that a cache shares with the holders of the device: `LocalDevices.adopt` takes it as it is. */
export function compactDevice(row: DeviceRow): CachedDevice {
  return new CachedDevice(compactRow(row));
}

/** Returns one string for all equal ones. */
export function sharedText<Text extends string>(text: Text): Text {
  const shared = texts.get(text);
  if (shared !== undefined) return shared as Text;
  texts.set(text, text);
  return text;
}
