import { expect, it } from 'vitest';
import { limits } from '../base/limits.ts';
import { Metrics } from '../base/metrics/metrics.ts';
import type { CachedDevice } from '../device/model/cached-device.ts';
import type { GatewayDeps } from './gateway.ts';
import { Gateways } from './gateways.ts';
import type { GatewayLink } from './link.ts';

it('messages that wait hold a share for each gateway and each tenant', () => {
  const gateways = new Gateways({ sessions: { onChecked() {} } } as unknown as GatewayDeps, new Metrics());
  const bytes = 1024 * 1024;
  const hold = (number: number, tenantId: string) => {
    try {
      return gateways.hold({ number, tenantId }, bytes);
    } catch (error) {
      return (error as { reason: string }).reason;
    }
  };
  const held: unknown[] = [];
  const holdAll = (number: number, tenantId: string) => {
    for (let outcome = hold(number, tenantId); ; outcome = hold(number, tenantId)) {
      if (typeof outcome === 'string') return outcome;
      held.push(outcome);
    }
  };
  expect(holdAll(1, 'a')).toBe('gateway_held_share');
  expect(held).toHaveLength(limits.gatewayHeldBytesPerGatewayMax / bytes);
  for (let number = 2; number < 20; number += 1) expect(holdAll(number, 'a')).toBe('gateway_held_share');
  expect(held).toHaveLength(limits.gatewayHeldBytesPerTenantMax / bytes);
  holdAll(20, 'b');
  holdAll(21, 'c');
  expect(hold(22, 'd')).toBe('gateway_held');
  for (const release of held) (release as () => void)();
  expect(hold(1, 'a')).toBeTypeOf('function');
});

it('a gateway is closed once', () => {
  const gateways = new Gateways({ sessions: { onChecked() {} } } as unknown as GatewayDeps, new Metrics());
  const gateway = gateways.open({ id: 'hub', number: 1 } as CachedDevice, {} as GatewayLink);
  gateways.close(gateway);
  expect(() => gateways.close(gateway)).toThrow('BUG: a gateway is closed once (children of gateway of device hub)');
});
