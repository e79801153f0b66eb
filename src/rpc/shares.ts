/**
 * The owners of a waiting command, and the share of each owner of the room for waiting commands of this worker. Shares
 * keep one caller from using up the room of all. `Waiters` counts the bytes.
 */
import type { BudgetOwner } from '../base/byte-budget.ts';
import { Fault } from '../base/errors.ts';
import type { ReasonOf } from '../base/reasons.ts';

/** `customerId`: the device's customer when the command arrived. */
export interface CommandOwners {
  readonly device: number;
  readonly tenantId: string;
  readonly customerId: string | null;
}

export interface ShareLimits {
  deviceBytesMax: number;
  customerBytesMax: number;
  tenantBytesMax: number;
}

interface CommandOwner extends BudgetOwner {
  reason: ReasonOf<429>;
  whose: string;
}

export function ownersOf({ device, customerId, tenantId }: CommandOwners, limits: ShareLimits): CommandOwner[] {
  const { deviceBytesMax, customerBytesMax, tenantBytesMax } = limits;
  const owners: CommandOwner[] = [
    { name: `device ${device}`, bytesMax: deviceBytesMax, reason: 'rpc_device_bytes', whose: 'of the device' },
    {
      name: `tenant ${tenantId}`,
      bytesMax: tenantBytesMax,
      reason: 'rpc_tenant_full',
      whose: 'of all devices of the tenant',
    },
  ];
  if (customerId === null) return owners;
  const whose = 'of all devices of the customer';
  owners.splice(1, 0, {
    name: `customer ${customerId}`,
    bytesMax: customerBytesMax,
    reason: 'rpc_customer_full',
    whose,
  });
  return owners;
}

export function shareFull({ bytesMax, reason, whose }: CommandOwner): Fault {
  const message = `The waiting commands ${whose} may take ${bytesMax} bytes, and this one has no room: send it later.`;
  return new Fault(reason, message, 1);
}
