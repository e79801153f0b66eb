/**
 * The answer to `getSessionLimits` (docs/mqtt.md#commands-and-calls). Gateways request it first, to limit their own
 * rate. All members are always present; an empty string means no limit.
 */
import type { RateLimitSettings } from '../../auth/rate-kinds.ts';
import type { RateLimits } from '../../auth/rate-limits.ts';
import type { Config } from '../../base/settings/config.ts';
import type { SessionKind } from '../session/session.ts';

export function sessionLimits(
  { packetBytesMax, inflightMax }: Pick<Config['mqtt'], 'packetBytesMax' | 'inflightMax'>,
  gatewayBytesMax: number,
  rateLimits: Pick<RateLimits, 'settingsOf'>,
): (kind: SessionKind, tenantId: string) => string {
  return (kind, tenantId) => {
    const given = rateLimits.settingsOf(tenantId);
    const isGateway = kind === 'gateway';
    return JSON.stringify({
      maxPayloadSize: isGateway ? gatewayBytesMax : packetBytesMax,
      maxInflightMessages: inflightMax,
      rateLimits: compactLimits(isGateway ? given.gatewayDevice : given.device),
      ...(isGateway && { gatewayRateLimits: compactLimits(given.gateway) }),
    });
  };
}

function compactLimits({ messages, telemetryMessages, telemetryDataPoints }: RateLimitSettings['device']) {
  const compact = (text: string) => text.replaceAll(' ', '');
  return {
    messages: compact(messages),
    telemetryMessages: compact(telemetryMessages),
    telemetryDataPoints: compact(telemetryDataPoints),
  };
}
