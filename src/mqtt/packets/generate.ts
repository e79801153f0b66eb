/**
 * Writes packets with mqtt-packet's generator. Its parser is not loaded: reading is in wire/received-packets.ts and
 * wire/field-reader.ts, and the parser would add forty files to every start.
 */
import { createRequire } from 'node:module';
import type { generate as Generate, writeToStream as WriteToStream } from 'mqtt-packet';

const require = createRequire(import.meta.url);

// The package would cache each number of two bytes as a Buffer: 6 MB that every major garbage collection visits.
(require('mqtt-packet/writeToStream.js') as typeof WriteToStream).cacheNumbers = false;

export const generate = require('mqtt-packet/generate.js') as typeof Generate;
