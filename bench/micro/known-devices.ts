/**
 * The devices that a worker knows by token, in the table of `TokenCache`: memory of each, nanoseconds of a lookup, and
 * the longest single step. Needs `globalThis.gc`. Tokens are fresh strings, as a request has them.
 */
import { randomBytes, randomUUID } from 'node:crypto';
import { setImmediate as turn } from 'node:timers/promises';
import { SeenTimes } from '../../src/activity/seen-times.ts';
import { systemClock } from '../../src/base/clock.ts';
import { limits } from '../../src/base/limits.ts';
import { LocalDevices } from '../../src/device/local-devices.ts';
import type { DeviceRow } from '../../src/device/model/cached-device.ts';
import { TokenCache } from '../../src/device/token-cache.ts';

interface KnownDevicesFigure {
  devices: number;
  bytesPerDevice: number;
  activityBytesPerDevice: number;
  /** A lookup of one of the last 1 000 devices, and of any device. */
  recentNs: number;
  randomNs: number;
  /** The longest addition and the longest lookup of 100 devices, including pauses of the garbage collector. */
  addMsMax: number;
  lookupMsMax: number;
}

const tokenChars = 20;
const lookups = 1_000_000;
const devices = 1_000_000;
const rounds = 3;

export async function benchKnownDevices(): Promise<KnownDevicesFigure> {
  const tokens = Buffer.from(randomBytes(devices * tokenChars).map((byte) => 97 + (byte % 26)));
  const tokenAt = (n: number) => tokens.toString('latin1', n * tokenChars, (n + 1) * tokenChars);
  const numbers = new Map<string, number>();
  const [tenantId, profileId, customerId] = [randomUUID(), randomUUID(), randomUUID()].map((id) => Buffer.from(id));
  /** A row as the driver of PostgreSQL returns it: every string is new. */
  const row = (n: number): DeviceRow => ({
    ...{ number: n + 1, id: randomUUID(), tenantId: String(tenantId), customerId: String(customerId) },
    ...{ profileId: String(profileId), name: `device ${n}`, version: 1, isGateway: false, isConfined: false },
    madeBy: null,
  });
  const lookUp = async (wanted: string[]) => new Map(wanted.map((token) => [token, row(numbers.get(token)!)]));
  const order = Uint32Array.from({ length: lookups }, () => Math.floor(Math.random() * devices));
  const before = await used();
  const cache = new TokenCache(lookUp, limits, new LocalDevices(), systemClock);
  let addMsMax = 0;
  for (let n = 0; n < devices; n += 100) {
    // Ctrl-C is noticed here.
    await turn();
    numbers.clear();
    for (let i = n; i < Math.min(n + 100, devices); i += 1) numbers.set(tokenAt(i), i);
    const start = performance.now();
    await Promise.all([...numbers.keys()].map((token) => cache.lookup(token)));
    addMsMax = Math.max(addMsMax, performance.now() - start);
  }
  numbers.clear();
  const bytesPerDevice = Math.round(((await used()) - before) / devices);
  let [recentNs, randomNs, lookupMsMax] = [Number.POSITIVE_INFINITY, Number.POSITIVE_INFINITY, 0];
  for (let round = 0; round < rounds; round += 1) {
    for (let i = devices - 1_000; i < devices; i += 1) found += cache.get(tokenAt(i))!.number;
    let start = performance.now();
    for (let i = 0; i < lookups; i += 1) found += cache.get(tokenAt(devices - 1 - (i % 1_000)))!.number;
    recentNs = Math.min(recentNs, ((performance.now() - start) * 1e6) / lookups);
    start = performance.now();
    for (let i = 0; i < lookups; i += 100) {
      const from = performance.now();
      for (let k = i; k < i + 100; k += 1) found += cache.get(tokenAt(order[k]!))!.number;
      lookupMsMax = Math.max(lookupMsMax, performance.now() - from);
    }
    randomNs = Math.min(randomNs, ((performance.now() - start) * 1e6) / lookups);
  }
  const activityBytesPerDevice = await activity();
  if (found === 0) throw new Error('no device was found');
  return { devices, bytesPerDevice, activityBytesPerDevice, recentNs, randomNs, addMsMax, lookupMsMax };
}

/** `found` is read at the end, so that the compiler keeps the lookups. */
let found = 0;

async function activity(): Promise<number> {
  const before = await used();
  const seen = new SeenTimes();
  for (let n = 1; n <= devices; n += 1) seen.note(n, 1_800_000_000_000);
  seen.takeWoken(devices);
  const bytes = (await used()) - before;
  found += seen.timeOf(1);
  return Math.round((bytes / devices) * 10) / 10;
}

async function used(): Promise<number> {
  // Buffers are freed after the collection that finds them.
  for (let i = 0; i < 3; i += 1) {
    globalThis.gc!();
    await new Promise((resolve) => setTimeout(resolve, 100));
  }
  const { heapUsed, external } = process.memoryUsage();
  return heapUsed + external;
}
