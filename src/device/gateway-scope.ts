/**
 * Which devices of its tenant a gateway acts for. A gateway of a customer acts for the devices of that customer. A gateway
 * without a customer acts for all devices of the tenant. A confined gateway acts for those of them that it made: it has no
 * customer and "gatewayScope":"own", or users of a former customer know its credentials.
 */
import type { DeviceRow } from './cached-device.ts';

/** `gateway.customerScope`. `tenant`: a gateway acts for all devices of its tenant, whatever customer either has. */
export type CustomerScope = 'customer' | 'tenant';

export type ScopedGateway = Pick<DeviceRow, 'number' | 'customerId' | 'isConfined'>;
export type ScopedDevice = Pick<DeviceRow, 'number' | 'customerId' | 'madeBy'>;

/** Undefined when it cannot be said: the file of known devices does not know who made a device. */
export function actsFor(gateway: ScopedGateway, device: ScopedDevice, scope: CustomerScope): boolean | undefined {
  if (scope === 'tenant' || device.number === gateway.number) return true;
  if (gateway.customerId !== null && device.customerId !== gateway.customerId) return false;
  if (!gateway.isConfined) return true;
  return device.madeBy === undefined ? undefined : device.madeBy === gateway.number;
}
