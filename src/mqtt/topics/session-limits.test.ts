import { expect, it } from 'vitest';
import { sessionLimits } from './session-limits.ts';

it('gives a device its own limits, and a gateway its own and those of its devices, compact and complete', () => {
  const none = { messages: '', telemetryMessages: '', telemetryDataPoints: '' };
  const rateLimits = {
    settingsOf: (tenantId: string) => ({
      device: { ...none, messages: tenantId === 'mill' ? '10:1, 300:60' : '' },
      gatewayDevice: { ...none, telemetryMessages: '20:1' },
      gateway: { ...none, telemetryDataPoints: '500:1' },
      tenant: none,
    }),
  };
  const limitsOf = sessionLimits({ packetBytesMax: 65_536, inflightMax: 1_000 }, 4_000_000, rateLimits);
  const head = { maxPayloadSize: 65_536, maxInflightMessages: 1_000 };
  expect(JSON.parse(limitsOf('device', 'mill'))).toEqual({ ...head, rateLimits: { ...none, messages: '10:1,300:60' } });
  expect(JSON.parse(limitsOf('device', 'bakery'))).toEqual({ ...head, rateLimits: none });
  expect(JSON.parse(limitsOf('gateway', 'mill'))).toEqual({
    ...head,
    maxPayloadSize: 4_000_000,
    rateLimits: { ...none, telemetryMessages: '20:1' },
    gatewayRateLimits: { ...none, telemetryDataPoints: '500:1' },
  });
});
