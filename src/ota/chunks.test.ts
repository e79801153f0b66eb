import { expect, test } from 'vitest';
import { base64Member, chunkRange, PieceCache, pieceBytes, readRange } from './chunks.ts';

test('a chunk is cut at the end of the file', () => {
  expect(chunkRange(10, 4, 0)).toEqual({ start: 0, end: 4 });
  expect(chunkRange(10, 4, 2)).toEqual({ start: 8, end: 10 });
  expect(chunkRange(10, 5, 1)).toEqual({ start: 5, end: 10 });
  expect(chunkRange(10, 100, 0)).toEqual({ start: 0, end: 10 });
});

test('a chunk at or after the end is empty, even with large numbers', () => {
  expect(chunkRange(10, 5, 2)).toEqual({ start: 10, end: 10 });
  expect(chunkRange(10, 2 ** 31 - 1, 2 ** 31 - 1)).toEqual({ start: 10, end: 10 });
});

test('without a size it is the whole file', () => {
  expect(chunkRange(10, 0, 7)).toEqual({ start: 0, end: 10 });
});

const fileA = { id: 'a', tenantId: 'tenant' };
const fileB = { id: 'b', tenantId: 'tenant' };

function pieces(bytesMax: number, loadingMax = 10) {
  const loaded: number[] = [];
  const cache = new PieceCache(
    async (_id, number) => {
      loaded.push(number);
      return Buffer.alloc(pieceBytes, number);
    },
    bytesMax,
    loadingMax,
  );
  return { cache, loaded };
}

test('many requests for the same piece cause one load', async () => {
  const { cache, loaded } = pieces(4 * pieceBytes);
  const parts = await Promise.all(Array.from({ length: 50 }, () => cache.read(fileA, pieceBytes + 5, pieceBytes + 9)));
  expect(loaded).toEqual([1]);
  expect(parts.every((part) => part.equals(Buffer.alloc(4, 1)))).toBe(true);
});

test('a read ends at its piece', async () => {
  const { cache } = pieces(4 * pieceBytes);
  expect(await cache.read(fileA, pieceBytes - 3, pieceBytes + 9)).toEqual(Buffer.alloc(3, 0));
});

test('a peek finds what is in memory and inside one piece', async () => {
  const { cache } = pieces(4 * pieceBytes);
  expect(cache.peek('a', { start: 0, end: 3 })).toBeUndefined();
  await cache.read(fileA, 0, 1);
  expect(cache.peek('a', { start: 0, end: 3 })).toEqual(Buffer.alloc(3));
  expect(cache.peek('a', { start: pieceBytes - 1, end: pieceBytes + 1 })).toBeUndefined();
});

test('the cap holds, and what was used last stays', async () => {
  const { cache, loaded } = pieces(2 * pieceBytes);
  for (const number of [0, 1, 0, 2, 0, 1]) await cache.read(fileA, number * pieceBytes, number * pieceBytes + 1);
  expect(loaded).toEqual([0, 1, 2, 1]);
  expect(cache.bytes).toBe(2 * pieceBytes);
});

test('more different loads than allowed are refused, and a failed load is tried again', async () => {
  const { cache } = pieces(4 * pieceBytes, 1);
  const first = cache.read(fileA, 0, 1);
  await expect(cache.read(fileB, 0, 1)).rejects.toMatchObject({ status: 503, reason: 'ota_pieces' });
  await first;
  let fails = true;
  const failing = new PieceCache(
    async () => {
      if (fails) throw new Error('away');
      return Buffer.alloc(1);
    },
    pieceBytes,
    1,
  );
  await expect(failing.read(fileA, 0, 1)).rejects.toThrow('away');
  fails = false;
  expect(await failing.read(fileA, 0, 1)).toHaveLength(1);
});

const file = Buffer.from(Array.from({ length: 3 * pieceBytes + 1000 }, (_, i) => (i * 31 + (i >> 8)) & 0xff));

test('a tenant that asks for many pieces keeps no other tenant out: they take turns', async () => {
  const order: string[] = [];
  const cache = new PieceCache(
    async (id, number) => {
      order.push(`${id}${number}`);
      return Buffer.alloc(pieceBytes);
    },
    100 * pieceBytes,
    10,
  );
  const other = { id: 'other', tenantId: 'another tenant' };
  const many = Array.from({ length: 10 }, (_, n) => cache.read(fileA, n * pieceBytes, n * pieceBytes + 1));
  const newest = expect(many[9]).rejects.toMatchObject({ status: 503, reason: 'ota_pieces' });
  await cache.read(other, 0, 1);
  expect(order.indexOf('other0')).toBeLessThan(7);
  await Promise.all([...many.slice(0, 9), newest]);
});

function fileCache() {
  return new PieceCache(
    async (_id, number) => file.subarray(number * pieceBytes, (number + 1) * pieceBytes),
    4 * pieceBytes,
    4,
  );
}

async function gathered(bytes: Awaited<ReturnType<typeof readRange>>): Promise<Buffer> {
  if (Buffer.isBuffer(bytes)) return bytes;
  const slices: Buffer[] = [];
  for (let at = 0; at < bytes.bytes; at += slices.at(-1)!.length) slices.push(await bytes.slice(at));
  return Buffer.concat(slices);
}

test.each([
  [0, 0],
  [0, 10],
  [pieceBytes - 5, pieceBytes + 5],
  [100, 100 + pieceBytes],
  [100, 101 + pieceBytes],
  [0, file.length],
  [pieceBytes + 7, file.length - 3],
])('bytes %i to %i', async (start, end) => {
  expect((await gathered(await readRange(fileCache(), fileA, { start, end }))).equals(file.subarray(start, end))).toBe(
    true,
  );
});

test.each([1, 2, 3, pieceBytes, file.length])('%i bytes in base64 inside JSON', async (length) => {
  const text = (await gathered(base64Member(fileCache(), fileA, length, { title: 'ü' }, 'data'))).toString();
  expect(JSON.parse(text)).toEqual({ title: 'ü', data: file.subarray(0, length).toString('base64') });
});
