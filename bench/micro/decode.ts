/**
 * Decoding against `JSON.parse`, in one run: bytes → rows, and bytes → string → object → a walk over its members,
 * which stores nothing. Rounds alternate and the best of each counts, so that a busy machine hurts both alike.
 */

import { setImmediate as turn } from 'node:timers/promises';
import { decodeTelemetry } from '../../src/telemetry/decode.ts';
import { Rows } from '../../src/telemetry/rows.ts';
import { anyTime } from '../../test/harness/decode-options.ts';

export interface DecodeFigure {
  message: string;
  bytes: number;
  decodeNs: number;
  encodeNs: number;
  parseNs: number;
  /** parse / (decode + encode): above 1 Millrace is faster. */
  ratio: number;
}

const now = 1_800_000_000_000;
const options = { ...anyTime, lenientJson: true, pointsPerMessageMax: 200_000 };
const messagesPerFrame = 256;
const messages = 20_480;
const rounds = 15;

/** Adds a figure for each kind of message, one after the other. */
export async function benchDecode(figures: DecodeFigure[]): Promise<void> {
  const names = ['temperature', 'humidity', 'pressure', 'voltage', 'rssi', 'state', 'door', 'flow', 'energy', 'uptime'];
  const value = (key: number, i: number): unknown => {
    if (key % 5 === 4) return -(i % 100);
    if (key === 5) return 'running';
    if (key === 6) return i % 2 === 0;
    return Math.round(((i * 7919 + key * 104_729) % 100_000) + 1) / 100;
  };
  const bodies = (keys: number, wrap: (values: object, i: number) => unknown, space?: number): Buffer[] =>
    Array.from({ length: messagesPerFrame }, (_, i) => {
      const values = Object.fromEntries(names.slice(0, keys).map((name, key) => [name, value(key, i)]));
      const text = JSON.stringify(wrap(values, i));
      return Buffer.from(space ? text.replaceAll(/([,:])"?/g, (m) => `${m[0]} ${m.slice(1)}`) : text);
    });
  const bare = (values: object): unknown => values;
  const timed = (values: object, i: number): unknown => ({ ts: now - i, values });
  const kinds: [message: string, bodies: Buffer[], count: number][] = [
    ['1 key', bodies(1, bare), messages],
    ['4 keys', bodies(4, bare), messages],
    ['10 keys', bodies(10, bare), messages],
    ['1 key, ts', bodies(1, timed), messages],
    ['4 keys, ts', bodies(4, timed), messages],
    ['10 keys, ts', bodies(10, timed), messages],
    ['4 keys, ts, spaced', bodies(4, timed, 1), messages],
    ['array of 10 × 4 keys, ts', bodies(4, (v, i) => Array.from({ length: 10 }, () => timed(v, i))), messages / 10],
    ['4 keys, 17 digits', bodies(4, (_, i) => ({ a: i / 7, b: i / 3.1, c: i / 9.7, d: 1 / (i + 1) })), messages],
    ['4 keys, nested JSON', bodies(4, (v) => ({ ...v, place: { lat: 1.5, lon: 2 } })), messages],
  ];
  for (const [message, own, count] of kinds) figures.push(await figure(message, own, count));
}

async function figure(message: string, bodies: Buffer[], count: number): Promise<DecodeFigure> {
  const rows = new Rows(65_536);
  const device = { number: 42 };
  const stamp = { order: BigInt(now) << 20n, micros: now * 1000 + 300, firstPlace: 0 };
  let decodeNs = Number.POSITIVE_INFINITY;
  let encodeNs = Number.POSITIVE_INFINITY;
  let parseNs = Number.POSITIVE_INFINITY;
  for (let round = 0; round < rounds; round += 1) {
    // Ctrl-C is noticed between two rounds.
    await turn();
    let decoding = 0;
    let encoding = 0;
    for (let done = 0; done < count; done += messagesPerFrame) {
      const start = performance.now();
      for (const body of bodies) decodeTelemetry(body, device, now, rows, options);
      const middle = performance.now();
      rows.encode(stamp);
      rows.reset();
      decoding += middle - start;
      encoding += performance.now() - middle;
    }
    const start = performance.now();
    for (let done = 0; done < count; done += messagesPerFrame)
      for (const body of bodies) walked += walk(JSON.parse(body.toString()));
    const parsing = performance.now() - start;
    decodeNs = Math.min(decodeNs, (decoding * 1e6) / count);
    encodeNs = Math.min(encodeNs, (encoding * 1e6) / count);
    parseNs = Math.min(parseNs, (parsing * 1e6) / count);
  }
  if (walked === 0) throw new Error('JSON.parse read no member');
  const bytes = bodies[0]!.length;
  return { message, bytes, decodeNs, encodeNs, parseNs, ratio: parseNs / (decodeNs + encodeNs) };
}

/** `walked` is read at the end, so that the compiler keeps the loop over the members. */
let walked = 0;

function walk(json: unknown): number {
  if (Array.isArray(json)) return json.reduce((sum: number, item) => sum + walk(item), 0);
  const { ts, values } = json as { ts?: number; values?: object };
  const members = ts !== undefined && values !== undefined ? values : (json as object);
  let sum = 0;
  for (const key in members) {
    const value: unknown = (members as Record<string, unknown>)[key];
    if (typeof value === 'number') sum += value;
    else if (typeof value === 'string') sum += value.length;
    else if (typeof value === 'boolean') sum += key.length;
    else sum += JSON.stringify(value).length;
  }
  return sum;
}
