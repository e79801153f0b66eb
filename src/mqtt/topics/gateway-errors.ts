/**
 * `v1/gateway/errors`: names discarded messages and the reasons to a gateway that subscribed. It is for messages that
 * no acknowledgement refuses: QoS 0, and MQTT 3.
 */
import type { Fault } from '../../base/errors.ts';
import type { Publish } from '../session/operation.ts';

export const errorsTopic = 'v1/gateway/errors';

interface Discarded extends Pick<Publish, 'session' | 'topic'> {
  /** 0 for QoS 0. */
  readonly packetId: number;
}

/** Returns false when the gateway did not subscribe. */
export function sendGatewayError({ session, topic, packetId }: Discarded, { reason, message }: Fault): boolean {
  const { subscriptions } = session;
  if (!subscriptions.covers(errorsTopic)) return false;
  const id = packetId > 0 ? { packetId } : {};
  session.push(errorsTopic, JSON.stringify({ topic, ...id, reason, message }), subscriptions.qosOf(errorsTopic));
  return true;
}
