/**
 * Writes packets with mqtt-packet's generator. Its parser is not loaded: reading is in wire/received-packets.ts and
 * wire/field-reader.ts, and the parser would add forty files to every start.
 */
import { createRequire } from 'node:module';
import type {
  generate as Generate,
  IConnackPacket,
  IDisconnectPacket,
  ISubackPacket,
  writeToStream as WriteToStream,
} from 'mqtt-packet';

const require = createRequire(import.meta.url);

// The package would cache each number of two bytes as a Buffer: 6 MB that every major garbage collection visits.
(require('mqtt-packet/writeToStream.js') as typeof WriteToStream).cacheNumbers = false;

export const generate = require('mqtt-packet/generate.js') as typeof Generate;

/**
 * Writes a packet of MQTT 5 with the first properties that leave it within `bytesMax`, the Maximum Packet Size of the
 * client; without properties when none does.
 */
export function generateWithin(
  packet: IConnackPacket | ISubackPacket | IDisconnectPacket,
  properties: { reasonString?: string; serverReference?: string }[],
  bytesMax: number,
): Buffer {
  for (const some of properties) {
    const bytes = generate({ ...packet, properties: some }, { protocolVersion: 5 });
    if (bytes.length <= bytesMax) return bytes;
  }
  return generate(packet, { protocolVersion: 5 });
}
