/**
 * Writes packets with mqtt-packet's generator. Its parser is not loaded: reading is in wire/frames.ts and
 * wire/field-reader.ts, and the parser would add forty files to every start.
 */
import { createRequire } from 'node:module';
import type { generate as Generate } from 'mqtt-packet';

const require = createRequire(import.meta.url);

export const generate = require('mqtt-packet/generate.js') as typeof Generate;
