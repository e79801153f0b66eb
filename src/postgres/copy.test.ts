import { expect, test } from 'vitest';
import { CopyValue } from './copy.ts';

const header = Buffer.concat([Buffer.from('PGCOPY\n\xff\r\n\0', 'latin1'), Buffer.alloc(8)]);
const end = Buffer.from([0xff, 0xff]);

function row(bytes: Buffer): Buffer {
  const head = Buffer.alloc(6);
  head.writeInt16BE(1, 0);
  head.writeInt32BE(bytes.length, 2);
  return Buffer.concat([head, bytes]);
}

function answer(chunks: Buffer[]): unknown {
  let outcome: unknown = 'nothing';
  const copy = new CopyValue('select 1', 1000, (error, value) => {
    outcome = error ?? value;
  });
  for (const chunk of chunks) {
    copy.handleCopyData({ chunk });
    // The driver uses its buffer again.
    chunk.fill(0xee);
  }
  copy.handleReadyForQuery();
  return outcome;
}

test('a value comes with the header or after it', () => {
  const value = Buffer.from([0, 1, 255]);
  expect(answer([Buffer.concat([header, row(value)]), Buffer.from(end)])).toEqual(value);
  expect(answer([Buffer.from(header), row(value), Buffer.from(end)])).toEqual(value);
  expect(answer([Buffer.concat([header, row(Buffer.alloc(0))]), Buffer.from(end)])).toEqual(Buffer.alloc(0));
});

test('no row is no value', () => {
  expect(answer([Buffer.concat([header, end])])).toBeUndefined();
  expect(answer([Buffer.from(header), Buffer.from(end)])).toBeUndefined();
});
