/** Assembles all operations and streams of gateways for `open.ts`. */
import type { Log } from '../../base/log.ts';
import type { Gateways } from '../../gateway/gateways.ts';
import { type GatewayAttributeRequestsDeps, gatewayAttributeRequestTopics } from './gateway-attribute-requests.ts';
import { type GatewayAttributesDeps, gatewayAttributeTopics } from './gateway-attributes.ts';
import { type GatewayClaimDeps, gatewayClaimTopics } from './gateway-claim.ts';
import { type GatewayRpcDeps, gatewayRpcTopics } from './gateway-rpc.ts';
import { GatewaySessions, gatewaySessionTopics, gatewayStreams } from './gateway-sessions.ts';
import { type GatewayTelemetryDeps, gatewayTelemetryTopics } from './gateway-telemetry.ts';
import type { Streams, TopicEntries } from './table.ts';

interface GatewayTopicsDeps
  extends GatewayTelemetryDeps,
    GatewayAttributesDeps,
    GatewayAttributeRequestsDeps,
    GatewayRpcDeps,
    GatewayClaimDeps {
  gateways: Gateways;
  log: Log;
}

export function gatewayTopics(
  deps: GatewayTopicsDeps,
  disconnectNotices: boolean,
): { topics: TopicEntries[]; streams: Streams } {
  const sessions = new GatewaySessions({ ...deps, disconnectNotices });
  return {
    topics: [
      gatewaySessionTopics(sessions, deps),
      gatewayTelemetryTopics(sessions, deps),
      gatewayAttributeTopics(sessions, deps),
      gatewayAttributeRequestTopics(sessions, deps),
      gatewayRpcTopics(sessions, deps),
      gatewayClaimTopics(sessions, deps),
    ],
    streams: gatewayStreams(sessions),
  };
}
