import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { limits } from '../base/limits.ts';
import { ackLevels, digestOf, type Receipt, type ReceiptPoint, readReceipt, writeReceipt } from './receipt.ts';

const key = Buffer.alloc(32, 1);
const order = (1_795_179_371_907n << 20n) | 0xabcden;

function receiptOf(named: ReceiptPoint[], over: Partial<Receipt> = {}): Receipt {
  const ids = { tenantId: '13814000-1dd2-11b2-8080-808080808080', deviceId: '784f394c-42b6-435a-983c-b7beff2784f9' };
  const times = { journaledTime: 1_795_179_371_909, oldestTs: 1_700_000_000_000, newestTs: 1_795_000_000_000 };
  const counts = { points: named.length, devices: 1 };
  return { ack: 'journal', ...ids, device: 7, order, lastOrder: order + 16_384n, ...times, ...counts, named, ...over };
}

const ts = fc.integer({ min: -(2 ** 43), max: 2 ** 43 });
const named = fc.array(
  fc.record({
    device: fc.integer({ min: 1, max: 2 ** 40 }),
    key: fc.constantFrom('a', 'temperature', 'é', '温度'),
    ts: fc.integer({ min: 0, max: 2 ** 42 }),
    seq: fc.nat({ max: 2 ** 32 - 1 }),
    digest: fc.nat({ max: 2 ** 32 - 1 }),
  }),
  { maxLength: 12 },
);

describe('a receipt', () => {
  it('has what was written, whatever the numbers', () => {
    fc.assert(
      fc.property(named, ts, fc.nat({ max: 2 ** 42 }), fc.constantFrom(...ackLevels), (points, oldest, range, ack) => {
        const shifted = points.map((point) => ({ ...point, ts: oldest + point.ts }));
        const receipt = receiptOf(shifted, { ack, oldestTs: oldest, newestTs: oldest + range });
        expect(readReceipt(writeReceipt(receipt, key), key)).toEqual(receipt);
      }),
    );
  });

  it('names as many points as fit, and at least one with the longest key', () => {
    const point = (name: string) => ({
      device: 2 ** 52,
      key: name,
      ts: 1_795_000_000_000,
      seq: 2 ** 32 - 1,
      digest: 7,
    });
    const many = Array.from({ length: 200 }, (_, n) => point(`key-${n}`));
    const text = writeReceipt(receiptOf(many), key);
    expect(Buffer.from(text, 'base64url').length).toBeLessThanOrEqual(limits.receiptBytesMax);
    const read = readReceipt(text, key);
    expect(read.points).toBe(200);
    expect(read.named.length).toBeGreaterThan(20);
    expect(read.named).toEqual(many.slice(0, read.named.length));
    const longest = [point('度'.repeat(limits.keyCharsMax))];
    expect(readReceipt(writeReceipt(receiptOf(longest), key), key).named).toEqual(longest);
    const same = Array.from({ length: 200 }, () => point('k'));
    expect(readReceipt(writeReceipt(receiptOf(same), key), key).named.length).toBeLessThanOrEqual(
      limits.receiptPointsMax,
    );
  });

  it('is refused when a bit was changed, when it is cut short, or with another key', () => {
    const text = writeReceipt(receiptOf([{ device: 7, key: 'a', ts: 1_700_000_000_000, seq: 0, digest: 1 }]), key);
    const bytes = Buffer.from(text, 'base64url');
    for (let bit = 8; bit < 8 * bytes.length; bit += 1) {
      const changed = Buffer.from(bytes);
      changed[bit >> 3]! ^= 1 << (bit & 7);
      expect(() => readReceipt(changed.toString('base64url'), key)).toThrow('forged');
    }
    for (let length = 0; length < text.length; length += 1) {
      expect(() => readReceipt(text.slice(0, length), key)).toThrow(/malformed|forged/);
    }
    expect(() => readReceipt(text, Buffer.alloc(32, 2))).toThrow('forged');
    for (const wrong of [`${text}A`, `${text}=`, ` ${text}`, 'x'.repeat(100_000), '%00', '']) {
      expect(() => readReceipt(wrong, key)).toThrow(/malformed|forged/);
    }
  });
});

it('the digest of a value tells kinds, numbers and strings apart', () => {
  const values = [
    { kind: 1, num: 0, int: 1n, text: '' },
    { kind: 2, num: 0, int: 1n, text: '' },
    { kind: 3, num: 1, int: 0n, text: '' },
    { kind: 3, num: -0, int: 0n, text: '' },
    { kind: 3, num: 0, int: 0n, text: '' },
    { kind: 4, num: 0, int: 0n, text: '1' },
    { kind: 5, num: 0, int: 0n, text: '1' },
  ];
  expect(new Set(values.map(digestOf)).size).toBe(values.length);
});
