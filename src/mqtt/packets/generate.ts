/**
 * Packets → bytes, by mqtt-packet's generator alone. Its parser is not used here (frames.ts, cursor.ts), and with it
 * every start would load forty files of streams.
 */
import { createRequire } from 'node:module';
import type { generate as Generate } from 'mqtt-packet';

const require = createRequire(import.meta.url);

export const generate = require('mqtt-packet/generate.js') as typeof Generate;
