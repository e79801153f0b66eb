/**
 * Posts telemetry over a socket and reads it back over REST. Values are compared as their JSON text, so that 42 differs
 * from 42.0, and the last digit of a 64-bit long counts. To prove that a message was not stored, tests post a marker
 * afterwards and wait for it.
 */
import { expect } from 'vitest';
import { type Device, eventually, type RangeOfSeries } from './api.ts';
import { RawConnection, type RawRequest, type RawResponse } from './raw.ts';
import { newDevice, sharedEngine } from './shared-engine.ts';

export interface StoredPoint {
  ts: number;
  /** The JSON text of the value. */
  value: string;
}

/** A device and one keep-alive connection of its own, on which posts keep their order. */
export class Poster {
  readonly device: Device;
  readonly connection: RawConnection;

  constructor(device: Device, connection: RawConnection) {
    this.device = device;
    this.connection = connection;
  }

  static async open(): Promise<Poster> {
    return new Poster(await newDevice(), await RawConnection.open(sharedEngine().address.port));
  }

  post(body: string | Buffer, headers: Record<string, string> = {}): Promise<RawResponse> {
    return this.connection.ask({ path: `/api/v1/${this.device.token}/telemetry`, body, headers });
  }

  ask(request: RawRequest): Promise<RawResponse> {
    return this.connection.ask(request);
  }

  /** Posts and expects the empty 200 of an accepted message. */
  async accept(body: string | Buffer, headers: Record<string, string> = {}): Promise<void> {
    const answer = await this.post(body, headers);
    expect(answer.body.toString()).toBe('');
    expect(answer.status).toBe(200);
    expect(answer.headers.get('content-length')).toBe('0');
  }

  /** Posts and expects a refusal in the error shape; returns its message. */
  async refuse(body: string | Buffer, status = 400, headers: Record<string, string> = {}): Promise<string> {
    return expectError(await this.post(body, headers), status);
  }

  /** Returns the points of a key once there are `count` of them. */
  async points(key: string, range: RangeOfSeries = aroundNow(), count = 1): Promise<StoredPoint[]> {
    return eventually(async () => {
      const text = await sharedEngine().readSeriesText(this.device.id, [key], range);
      const points = pointsOf(text, key);
      return points.length >= count ? points : undefined;
    }, 15_000);
  }

  /** Returns the JSON of a key's newest value, once it exists. */
  async value(key: string): Promise<string> {
    const points = await this.points(key);
    return points.at(-1)!.value;
  }

  /** Returns every key of the device, without the marker, once all earlier posts are stored. */
  async keys(): Promise<string[]> {
    // One marker for each lane of the journal: the lanes are shipped separately.
    await this.accept('{"~marker":1}');
    await this.accept('{"ts":1,"values":{"~old marker":1}}');
    const latest = await eventually(async () => {
      const values = await sharedEngine().readLatest(this.device.id);
      return values['~marker'] && values['~old marker'] ? values : undefined;
    }, 15_000);
    return Object.keys(latest)
      .filter((key) => !key.startsWith('~'))
      .sort();
  }

  close(): void {
    this.connection.close();
  }
}

export async function withPoster<T>(use: (poster: Poster) => Promise<T>): Promise<T> {
  const poster = await Poster.open();
  try {
    return await use(poster);
  } finally {
    poster.close();
  }
}

/** Expects the documented error shape: four members and no more. Returns the message. */
export function expectError(answer: RawResponse, status: number, errorCode?: number): string {
  const text = answer.body.toString();
  expect(`${answer.status} ${text}`).toMatch(new RegExp(`^${status} `));
  expect(answer.headers.get('content-type')).toMatch(/^application\/json/);
  const body = JSON.parse(text) as Record<string, unknown>;
  expect(Object.keys(body).sort()).toEqual(['errorCode', 'message', 'status', 'timestamp']);
  expect(body['status']).toBe(status);
  expect(Math.abs((body['timestamp'] as number) - Date.now())).toBeLessThan(60_000);
  expect(typeof body['errorCode']).toBe('number');
  if (errorCode !== undefined) expect(body['errorCode']).toBe(errorCode);
  return body['message'] as string;
}

/**
 * The engine follows the database's clock, which is the clock of this machine. The error of its measurement is a few
 * milliseconds, and more on a busy machine.
 */
export const clockErrorMs = 50;

export function aroundNow(): RangeOfSeries {
  const now = Date.now();
  return { startTs: now - 600_000, endTs: now + 600_000 };
}

export function at(ts: number): RangeOfSeries {
  return { startTs: ts, endTs: ts + 1 };
}

/** Returns the points of one key in a history answer, with the values unchanged. */
export function pointsOf(text: string, key: string): StoredPoint[] {
  const start = text.indexOf(`${JSON.stringify(key)}:[`);
  if (start < 0) return [];
  const list = jsonSpan(text, text.indexOf('[', start + JSON.stringify(key).length));
  const points: StoredPoint[] = [];
  let position = 1;
  while (position < list.length - 1) {
    const item = jsonSpan(list, position);
    const found = /^\{"ts":(-?\d+),"value":(.*)\}$/s.exec(item);
    if (!found) throw new Error(`not a point: ${item}`);
    points.push({ ts: Number(found[1]), value: found[2]! });
    position += item.length + 1;
  }
  return points;
}

/** Returns the bracketed JSON that starts at `start`. */
function jsonSpan(text: string, start: number): string {
  let depth = 0;
  for (let i = start; i < text.length; i += 1) {
    const character = text[i];
    if (character === '"') {
      for (i += 1; text[i] !== '"'; i += 1) if (text[i] === '\\') i += 1;
    } else if (character === '{' || character === '[') depth += 1;
    else if ((character === '}' || character === ']') && (depth -= 1) === 0) return text.slice(start, i + 1);
  }
  throw new Error(`no end: ${text.slice(start)}`);
}
