/** The row of a device in PostgreSQL, for tests that make devices without a store. */
import type { DeviceRow } from '../../src/device/model/cached-device.ts';

export function deviceRow(number: number, name = `device ${number}`): DeviceRow {
  return { number, id: `id-${number}`, tenantId: 't', customerId: null, profileId: 'p', name, version: 1 };
}
