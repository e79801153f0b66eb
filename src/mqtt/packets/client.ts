/** What a client announced in its CONNECT, and what every packet to this client keeps to. */
import type { ProtocolLevel } from '../wire/protocol.ts';

export interface Client {
  level: ProtocolLevel;
  /** True when the client wants no Reason Strings. */
  isTerse: boolean;
  /** Limits of the client: bytes of one packet, and unacknowledged messages. */
  packetBytesMax: number;
  receiveMaximum: number;
}

/** Before CONNECT. */
export const unknownClient: Client = {
  level: 4,
  isTerse: false,
  packetBytesMax: Number.POSITIVE_INFINITY,
  receiveMaximum: 0,
};
