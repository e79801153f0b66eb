/** Why a gateway has no child of a name, or has lost the child. */
import { Fault, notFound, unavailable } from '../base/errors.ts';
import type { CachedDevice, DeviceRow } from '../device/model/cached-device.ts';

export const renamed = unavailable('child_renamed', 'The device was renamed at this moment; send again.');
/** The refusal of a message whose devices were all connected a moment earlier. */
export const childLost = unavailable(
  'child_lost',
  'A device of the message was taken over at this moment; send again.',
);
export const gatewayGone = notFound('The connection of the gateway has ended.');

export const noGateway = new Fault('no_gateway', 'This device is not a gateway any more.');
export const makerUnknown = unavailable('child_maker', 'Devices cannot be looked up at the moment; send again.');

export function outOfScope(name: string, gateway: CachedDevice, device: DeviceRow | CachedDevice): Fault {
  const isOfOther = gateway.customerId !== null && device.customerId !== gateway.customerId;
  const reason = isOfOther
    ? 'the gateway belongs to a customer, and the device does not belong to the same one'
    : 'it was not made by this gateway, and the "gatewayScope" of the gateway is "own" or users of a former customer know its credentials';
  const message = `Device ${JSON.stringify(name)} is not connected through this gateway: ${reason}.`;
  return new Fault('child_out_of_scope', message);
}

export function tooManyChildren(childrenMax: number): Fault {
  const message = `This gateway has its limit of ${childrenMax} connected devices (gateway.childrenMax).`;
  return new Fault('gateway_children', message);
}
