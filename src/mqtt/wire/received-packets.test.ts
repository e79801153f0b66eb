import fc from 'fast-check';
import { describe, expect, test } from 'vitest';
import { ReceivedPackets } from './received-packets.ts';

const bytesMax = 65_536;

/** A packet of this type with `length` bytes of body. */
function packet(type: number, length: number): Buffer {
  const header = [type << 4];
  let left = length;
  do {
    header.push((left & 0x7f) | (left >= 0x80 ? 0x80 : 0));
    left >>= 7;
  } while (left > 0);
  return Buffer.concat([Buffer.from(header), Buffer.alloc(length, type)]);
}

/** Returns all packets that are read when the pieces arrive one after the other. */
function read(pieces: Buffer[], max = bytesMax): string[] {
  const received = new ReceivedPackets();
  const out: string[] = [];
  for (const piece of pieces) {
    received.feed(piece);
    for (;;) {
      const step = received.next(max);
      if (step === 'more') break;
      if (step !== 'packet') return [...out, step];
      out.push(`${received.type}:${received.buffer.subarray(received.start, received.end).toString('hex')}`);
    }
    // The reader may not read the bytes of an earlier piece again.
    received.keep();
    piece.fill(0xee);
  }
  return out;
}

describe('packets come out whole, however the bytes were cut', () => {
  test('any packets in any pieces', () => {
    const packets = fc.array(fc.tuple(fc.integer({ min: 1, max: 15 }), fc.integer({ min: 0, max: 300 })), {
      maxLength: 8,
    });
    const cuts = fc.array(fc.integer({ min: 1, max: 40 }), { maxLength: 60 });
    fc.assert(
      fc.property(packets, cuts, (specification, sizes) => {
        const bytes = Buffer.concat(specification.map(([type, length]) => packet(type, length)));
        const expected = specification.map(([type, length]) => `${type}:${Buffer.alloc(length, type).toString('hex')}`);
        const pieces: Buffer[] = [];
        let at = 0;
        for (const size of sizes) {
          pieces.push(Buffer.from(bytes.subarray(at, at + size)));
          at += size;
        }
        pieces.push(Buffer.from(bytes.subarray(at)));
        expect(read(pieces)).toEqual(expected);
      }),
    );
  });

  test('a large packet, byte by byte', () => {
    const bytes = packet(3, 20_000);
    expect(read([...bytes].map((byte) => Buffer.from([byte])))).toEqual([
      `3:${Buffer.alloc(20_000, 3).toString('hex')}`,
    ]);
  });
});

describe('the length is judged at the header', () => {
  test('the largest packet passes, one byte more does not', () => {
    expect(read([packet(3, bytesMax - 4)])).toHaveLength(1);
    expect(read([packet(3, bytesMax - 3)])).toEqual(['too_large']);
  });

  test('announced bytes need not come', () => {
    expect(read([Buffer.from([0x30, 0xff, 0xff, 0xff, 0x7f])])).toEqual(['too_large']);
    expect(read([0x30, 0xff, 0xff, 0xff, 0x7f].map((byte) => Buffer.from([byte])))).toEqual(['too_large']);
  });

  test('a length longer than it need be is malformed', () => {
    expect(read([Buffer.from([0x30, 0x80, 0x00])])).toEqual(['malformed']);
    expect(read([Buffer.from([0x30]), Buffer.from([0x82]), Buffer.from([0x00])])).toEqual(['malformed']);
    expect(read([Buffer.from([0x30, 0xff, 0xff, 0xff, 0xff, 0x01])])).toEqual(['malformed']);
  });
});

test('a packet that was unread comes again, before what follows', () => {
  for (const cut of [0, 1, 2, 5]) {
    const bytes = Buffer.concat([packet(3, 4), packet(8, 3)]);
    const received = new ReceivedPackets();
    received.feed(Buffer.from(bytes.subarray(0, cut)));
    received.next(bytesMax);
    received.feed(Buffer.from(bytes.subarray(cut)));
    expect(received.next(bytesMax)).toBe('packet');
    received.unread();
    received.keep();
    expect(received.next(bytesMax)).toBe('packet');
    expect(received.type).toBe(3);
    expect(received.end - received.start).toBe(4);
    expect(received.next(bytesMax)).toBe('packet');
    expect(received.type).toBe(8);
    expect(received.next(bytesMax)).toBe('more');
  }
});
