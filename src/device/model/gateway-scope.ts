/**
 * Rules for the devices of its tenant that a gateway may act for. A gateway of a customer acts for the devices of that
 * customer. A gateway without a customer acts for all devices of the tenant. A confined gateway acts only for devices
 * that it made. A gateway is confined when it has no customer and "gatewayScope":"own", or when users of a former
 * customer know its credentials.
 */
import type { DeviceRow } from './cached-device.ts';

/** `gateway.customerScope`. `tenant`: a gateway acts for all devices of its tenant, regardless of customers. */
export type CustomerScope = 'customer' | 'tenant';

export type ScopedGateway = Pick<DeviceRow, 'number' | 'customerId' | 'isConfined'>;
type ScopedDevice = Pick<DeviceRow, 'number' | 'customerId' | 'madeBy'>;

/** Returns undefined when the maker of the device is unknown, as it is in the file of known devices. */
export function actsFor(gateway: ScopedGateway, device: ScopedDevice, scope: CustomerScope): boolean | undefined {
  if (scope === 'tenant' || device.number === gateway.number) return true;
  if (gateway.customerId !== null && device.customerId !== gateway.customerId) return false;
  if (!gateway.isConfined) return true;
  return device.madeBy === undefined ? undefined : device.madeBy === gateway.number;
}
