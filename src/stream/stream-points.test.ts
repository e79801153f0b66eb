/** What other programs read from frames, and from files of frames. */
import { randomBytes } from 'node:crypto';
import { deflateRawSync } from 'node:zlib';
import { expect, test } from 'vitest';
import { loadConfig } from '../base/settings/config.ts';
import { type JournalFrame, live } from '../journal/journal.ts';
import { decodeFrameHead, encodeFrameHead } from '../journal/segment.ts';
import { decodeTelemetry } from '../telemetry/decode.ts';
import { decodeOptions } from '../telemetry/decode-options.ts';
import { Rows } from '../telemetry/rows.ts';
import { encodeStreamFrame, plainStreamFrame, streamFormat } from './stream-frame.ts';
import { framesIn, pointsOf } from './stream-points.ts';

const now = 1_790_000_000_000;
const order = BigInt(now) << 20n;
const options = decodeOptions(loadConfig({}));

function journalFrameOf(body: string, device = 7): JournalFrame {
  const rows = new Rows();
  decodeTelemetry(Buffer.from(body), { number: device }, now, rows, options);
  const parts = rows.encode({ order, micros: now * 1000, firstPlace: 0 });
  return { lane: live, order, rows: rows.count, parts };
}

function frameOf(body: string): Buffer {
  return plainStreamFrame(journalFrameOf(body), now + 5);
}

test('bytes that are no block are no frame, also between right checksums', () => {
  const noise = { lane: live, order, rows: 1, parts: [randomBytes(200)] };
  expect(pointsOf(plainStreamFrame(noise, now))).toBeUndefined();
});

async function read(...chunks: Buffer[]): Promise<(string | object)[]> {
  const found: (string | object)[] = [];
  async function* each(): AsyncGenerator<Buffer> {
    yield* chunks;
  }
  for await (const step of framesIn(each())) {
    found.push(
      step instanceof Uint8Array
        ? pointsOf(step)!
            .map(({ json }) => json)
            .join()
        : step,
    );
  }
  return found;
}

test('a frame has the points of its messages, with every kind of value exact', () => {
  const values = '{"a":9007199254740993,"b":1.0,"c":true,"d":"\\"","e":{"f":[1]}}';
  const points = pointsOf(frameOf(`{"ts":${now - 1},"values":${values}}`))!;
  expect(points.map(({ key, json }) => [key, json])).toEqual([
    ['a', '9007199254740993'],
    ['b', '1.0'],
    ['c', 'true'],
    ['d', '"\\""'],
    ['e', '{"f":[1]}'],
  ]);
  expect(points[0]).toMatchObject({ device: 7, ts: now - 1, seq: 0, order, arrivedMs: now + 5 });
  expect(pointsOf(frameOf('{"a":1}'))![0]).toMatchObject({ ts: now, seq: expect.any(Number) });
  expect(pointsOf(frameOf('{"a":1}'))![0]!.seq).toBeGreaterThan(0);
});

test('bytes that are no intact frame have no points', () => {
  const frame = frameOf('{"a":1}');
  expect(pointsOf(frame.subarray(0, -1))).toBeUndefined();
  frame[frame.length - 1]! ^= 1;
  expect(pointsOf(frame)).toBeUndefined();
  expect(pointsOf(Buffer.alloc(0))).toBeUndefined();
});

test('frames of a file are found, however it is read, with line ends between them', async () => {
  const file = Buffer.concat([frameOf('{"a":1}'), frameOf('{"a":2}'), Buffer.from('\n'), frameOf('{"a":3}')]);
  expect(await read(file)).toEqual(['1', '2', '3']);
  for (const size of [1, 7, 39, 41, 100]) {
    const chunks = Array.from({ length: Math.ceil(file.length / size) }, (_, i) =>
      file.subarray(i * size, (i + 1) * size),
    );
    expect(await read(...chunks)).toEqual(['1', '2', '3']);
  }
  expect(await read()).toEqual([]);
});

test('a stretch without a frame is named, and reading continues after it', async () => {
  const [first, second] = [frameOf('{"a":1}'), frameOf('{"a":2}')];
  const noise = Buffer.from('no frame\n');
  expect(await read(noise, first, noise, second)).toEqual([
    { from: 0, bytes: 9 },
    '1',
    { from: 9 + first.length, bytes: 9 },
    '2',
  ]);
  // The last frame is cut off.
  expect(await read(first, second.subarray(0, 50))).toEqual(['1', { from: first.length, bytes: 50 }]);
});

/** As the first version with streams wrote it, in the stream format 1. */
const recorded = [
  'LQEAAMQmrkIAAADABkUMGgBQwAZFDHpCAwAAAAAAAAAAAEpNlNo7RAgDBmRldmljZQZVSW50NjQHAAAAAAAAAAcAAAAAAAAABwAA',
  'AAAAAAADa2V5Fkxvd0NhcmRpbmFsaXR5KFN0cmluZykBAAAAAAAAAAACAAAAAAAAAwAAAAAAAAALdGVtcGVyYXR1cmUFY291bnQF',
  'c3RhdGUDAAAAAAAAAAABAgJ0cwVJbnQ2NABsUMSgAQAAAGxQxKABAAAAbFDEoAEAAARraW5kBVVJbnQ4AwIEA251bQdGbG9hdDY0',
  'AAAAAACANUAAAAAAAAAAAAAAAAAAAAAAA2ludAVJbnQ2NAAAAAAAAAAA/f////////8AAAAAAAAAAAR0ZXh0BlN0cmluZwAABG9w',
  'ZW4HdmVyc2lvbgZVSW50NjQAAAAAAAAAgAAAAAAAAACAAAAAAAAAAIA=',
].join('');

test('a frame that an earlier version wrote is read', () => {
  const points = pointsOf(Buffer.from(recorded, 'base64'))!;
  expect(points.map(({ device, key, ts, json }) => ({ device, key, ts, json }))).toEqual([
    { device: 7, key: 'temperature', ts: 1_790_000_000_000, json: '21.5' },
    { device: 7, key: 'count', ts: 1_790_000_000_000, json: '-3' },
    { device: 7, key: 'state', ts: 1_790_000_000_000, json: '"open"' },
  ]);
  expect(points[0]).toMatchObject({ order, seq: 0, arrivedMs: now + 5 });
});

test('into a stream of an earlier version a frame is written byte for byte as that version did, however large', async () => {
  const body = `{"ts":${now},"values":{"temperature":21.5,"count":-3,"state":"open"}}`;
  const frame = await encodeStreamFrame(journalFrameOf(body), now + 5, 1);
  expect(frame.toString('base64')).toBe(recorded);
  const large = journalFrameOf(largeBody);
  expect(await encodeStreamFrame(large, now, 1)).toEqual(plainStreamFrame(large, now));
});

const largeBody = JSON.stringify(
  Array.from({ length: 500 }, (_, n) => ({ ts: now + n, values: { temperature: n / 8, state: `open ${n}` } })),
);

test('a large frame is deflated, its points are the same, and damage to it is noticed', async () => {
  const plain = frameOf(largeBody);
  const frame = await encodeStreamFrame(journalFrameOf(largeBody), now + 5, streamFormat);
  expect(frame.length).toBeLessThan(plain.length / 4);
  expect(pointsOf(frame)).toEqual(pointsOf(plain));
  for (const at of [40, frame.length - 1]) {
    const damaged = Buffer.from(frame);
    damaged[at]! ^= 1;
    expect(pointsOf(damaged)).toBeUndefined();
  }
  expect(await read(frame, frame)).toHaveLength(2);
});

test('a payload that deflating makes no smaller stays as it is', async () => {
  const frame = { lane: live, order, rows: 1, parts: [randomBytes(5_000)] };
  expect(await encodeStreamFrame(frame, now, streamFormat)).toEqual(plainStreamFrame(frame, now));
});

test('a payload that is no deflated bytes, ends early, or becomes too large is damage, with the right checksums too', () => {
  const deflated = deflateRawSync(Buffer.from(largeBody));
  const large = deflateRawSync(Buffer.alloc(64 * 1024 * 1024 + 1));
  for (const payload of [randomBytes(5_000), deflated.subarray(0, -10), Buffer.alloc(0), large]) {
    const frame = plainStreamFrame({ lane: live, order, rows: 1, parts: [payload] }, now);
    encodeFrameHead(frame, 0, { ...decodeFrameHead(frame, 0, 0, 0)!, flags: 0x80 }, 0, 0);
    expect(pointsOf(frame)).toBeUndefined();
  }
});
