/** The limits and wishes that a client announced in its CONNECT. Every packet to the client respects them. */
import type { ProtocolLevel } from '../wire/protocol.ts';

export interface Client {
  level: ProtocolLevel;
  /** True when the client wants no Reason Strings. */
  isTerse: boolean;
  /** Maximum Packet Size. */
  packetBytesMax: number;
  /** Messages to the client that may wait for its PUBACK. */
  receiveMaximum: number;
}

/** The client of a connection before its CONNECT. */
export const unknownClient: Client = {
  level: 4,
  isTerse: false,
  packetBytesMax: Number.POSITIVE_INFINITY,
  receiveMaximum: 0,
};
