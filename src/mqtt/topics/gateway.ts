/** All that a gateway may do with the topics of gateways, put together for `door.ts`. */
import type { Log } from '../../base/log.ts';
import type { Gateways } from '../../gateway/gateways.ts';
import { type GatewayAttributesParts, gatewayAttributeTopics } from './gateway-attributes.ts';
import { type GatewayClaimParts, gatewayClaimTopics } from './gateway-claim.ts';
import { type GatewayRpcParts, gatewayRpcTopics } from './gateway-rpc.ts';
import { GatewaySessions, gatewaySessionTopics, gatewayStreams } from './gateway-sessions.ts';
import { type GatewayTelemetryParts, gatewayTelemetryTopics } from './gateway-telemetry.ts';
import type { Streams, TopicEntries } from './table.ts';

export interface GatewayTopicsParts
  extends GatewayTelemetryParts,
    GatewayAttributesParts,
    GatewayRpcParts,
    GatewayClaimParts {
  gateways: Gateways;
  log: Log;
}

export function gatewayTopics(
  parts: GatewayTopicsParts,
  disconnectNotices: boolean,
): { topics: TopicEntries[]; streams: Streams } {
  const sessions = new GatewaySessions({ ...parts, disconnectNotices });
  return {
    topics: [
      gatewaySessionTopics(sessions, parts),
      gatewayTelemetryTopics(sessions, parts),
      gatewayAttributeTopics(sessions, parts),
      gatewayRpcTopics(sessions, parts),
      gatewayClaimTopics(sessions, parts),
    ],
    streams: gatewayStreams(sessions),
  };
}
