/** The words of the protocol that packets, sessions and connections share. */

/** The packet types that clients send [MQTT-2.1.2]. */
export const packetType = {
  connect: 1,
  publish: 3,
  puback: 4,
  pubrel: 6,
  subscribe: 8,
  unsubscribe: 10,
  pingreq: 12,
  disconnect: 14,
} as const;

/** MQTT 3.1, 3.1.1, 5. */
export type ProtocolLevel = 3 | 4 | 5;
/** The QoS of a subscription, and of messages to the client. QoS 2 is accepted from clients and never granted. */
export type QoS = 0 | 1;
