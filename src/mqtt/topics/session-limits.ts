/**
 * The answer to `getSessionLimits` (docs/mqtt.md#commands-and-calls). Gateways request it first, to limit their own
 * rate. All members are always present; an empty string means no limit.
 */
import type { Config } from '../../base/settings/config.ts';
import type { SessionKind } from '../session/session.ts';

export function sessionLimits(
  { mqtt, rateLimits }: Pick<Config, 'mqtt' | 'rateLimits'>,
  gatewayBytesMax: number,
): (kind: SessionKind) => string {
  const limits = {
    maxPayloadSize: mqtt.packetBytesMax,
    maxInflightMessages: mqtt.inflightMax,
    rateLimits: texts(rateLimits.device),
  };
  const ofDevice = JSON.stringify(limits);
  const ofGateway = JSON.stringify({
    ...limits,
    maxPayloadSize: gatewayBytesMax,
    rateLimits: texts(rateLimits.gatewayDevice),
    gatewayRateLimits: texts(rateLimits.gateway),
  });
  return (kind) => (kind === 'gateway' ? ofGateway : ofDevice);
}

function texts({ messages, telemetryMessages, telemetryDataPoints }: Config['rateLimits']['device']) {
  const compact = (text: string) => text.replaceAll(' ', '');
  return {
    messages: compact(messages),
    telemetryMessages: compact(telemetryMessages),
    telemetryDataPoints: compact(telemetryDataPoints),
  };
}
