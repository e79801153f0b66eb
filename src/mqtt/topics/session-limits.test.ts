import { expect, it } from 'vitest';
import { sessionLimits } from './session-limits.ts';

it('gives a device its own limits, and a gateway its own and those of its devices, compact and complete', () => {
  const none = { messages: '', telemetryMessages: '', telemetryDataPoints: '' };
  const config = {
    mqtt: { packetBytesMax: 65_536, inflightMax: 1_000 },
    rateLimits: {
      device: { ...none, messages: '10:1, 300:60' },
      gatewayDevice: { ...none, telemetryMessages: '20:1' },
      gateway: { ...none, telemetryDataPoints: '500:1' },
    },
  } as Parameters<typeof sessionLimits>[0];
  const limitsOf = sessionLimits(config, 4_000_000);
  const head = { maxPayloadSize: 65_536, maxInflightMessages: 1_000 };
  expect(JSON.parse(limitsOf('device'))).toEqual({ ...head, rateLimits: { ...none, messages: '10:1,300:60' } });
  expect(JSON.parse(limitsOf('gateway'))).toEqual({
    ...head,
    maxPayloadSize: 4_000_000,
    rateLimits: { ...none, telemetryMessages: '20:1' },
    gatewayRateLimits: { ...none, telemetryDataPoints: '500:1' },
  });
});
