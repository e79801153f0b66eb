/** The words of the protocol that packets, sessions and connections share. */

/** MQTT 3.1, 3.1.1, 5. */
export type ProtocolLevel = 3 | 4 | 5;
/** The granted QoS, and the QoS of messages to the client. QoS 2 is accepted from clients, never granted. */
export type QoS = 0 | 1;
