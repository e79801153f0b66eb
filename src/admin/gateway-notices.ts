/**
 * Sends a gateway a command when a user deletes or renames one of its devices: without it the gateway would keep
 * sending under the old name (docs/mqtt.md#gateways). The command waits a day for the gateway, which the device's
 * additional info names. A command that cannot be stored is logged, and the change of the device stays.
 */
import type { Clock } from '../base/clock.ts';
import { messageOf } from '../base/errors.ts';
import { limits } from '../base/limits.ts';
import type { Log } from '../base/log.ts';
import { isUuid } from '../base/uuid.ts';
import { actsFor, type CustomerScope } from '../device/model/gateway-scope.ts';
import { findDeviceRow } from '../device/sql/store.ts';
import type { Queries } from '../postgres/client.ts';
import type { PersistentCall } from '../rpc/persistent.ts';

interface GatewayNoticesDeps {
  postgres: Queries;
  persistentRpcs: { create(call: PersistentCall): Promise<string> };
  clock: Clock;
  log: Log;
  customerScope: CustomerScope;
}

/** A device as it was before the change. */
interface ChangedDevice {
  id: string;
  number: number;
  name: string;
  customerId: string | null;
  additionalInfo: unknown;
}

export class GatewayNotices {
  readonly #deps: GatewayNoticesDeps;

  constructor(deps: GatewayNoticesDeps) {
    this.#deps = deps;
  }

  /** Called after the commit. Never throws. */
  async deleted(tenantId: string, device: ChangedDevice): Promise<void> {
    await this.#notify(tenantId, device, 'gateway_device_deleted', device.name);
  }

  /** Called after the commit. Never throws. */
  async renamed(tenantId: string, device: ChangedDevice, name: string): Promise<void> {
    await this.#notify(tenantId, device, 'gateway_device_renamed', { [device.name]: name });
  }

  async #notify(tenantId: string, device: ChangedDevice, method: string, params: unknown): Promise<void> {
    const { postgres, persistentRpcs, clock, log, customerScope } = this.#deps;
    const gatewayId = gatewayOf(device.additionalInfo);
    if (gatewayId === undefined || gatewayId === device.id) return;
    try {
      const gateway = await findDeviceRow(postgres, tenantId, gatewayId);
      // Users write the additional info, which may therefore name a gateway that never had the device.
      if (!gateway?.isGateway || actsFor(gateway, device, customerScope) === false) return;
      await persistentRpcs.create({
        tenantId,
        customerId: gateway.customerId,
        callerCustomerId: null,
        deviceId: gateway.id,
        device: gateway.number,
        method,
        params: JSON.stringify(params),
        oneway: true,
        expirationTime: clock.now() + limits.gatewayCommandMs,
        retries: limits.gatewayCommandRetries,
        additionalInfo: null,
      });
    } catch (error) {
      log.warn('gateway_not_told', { gateway: gatewayId, method, reason: messageOf(error) });
    }
  }
}

function gatewayOf(info: unknown): string | undefined {
  if (typeof info !== 'object' || info === null) return undefined;
  const { lastConnectedGateway: id } = info as { lastConnectedGateway?: unknown };
  return typeof id === 'string' && isUuid(id) ? id : undefined;
}
