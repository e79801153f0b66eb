import { gzipSync } from 'node:zlib';
import { expect, test } from 'vitest';
import { isWholeZstd, unpack } from './content-encoding.ts';
import { limits } from './limits.ts';

test('one sender that fills the queue of compressed bodies does not keep another one from its turn', async () => {
  const packed = gzipSync(Buffer.alloc(2 * limits.unpackedInLoopBytesMax));
  const ended: string[] = [];
  const send = (owner: string, sender: string) =>
    unpack('gzip', packed, 1_000_000, { owner, sender }, () => true).then(
      () => ended.push(owner),
      ({ reason }: { reason: string }) => ended.push(`${owner} ${reason}`),
    );
  const noisy = Array.from({ length: 2 * limits.unpackedWaitingMax }, () => send('noisy', 'device 1'));
  const quiet = Array.from({ length: 20 }, (_, n) => send('quiet', `device ${n}`));
  await Promise.all(quiet);
  expect(ended.filter((end) => end === 'quiet')).toHaveLength(20);
  expect(ended.filter((end) => end === 'noisy').length).toBeLessThan(60);
  await Promise.all(noisy);
  expect(ended.filter((end) => end === 'noisy unpacking').length).toBeGreaterThan(limits.unpackedWaitingMax / 2);
});

test('a zstd body is whole with its last frame only', () => {
  const magic = [0x28, 0xb5, 0x2f, 0xfd];
  // One segment with its size; a block as it is, and one of four equal bytes, which is the last.
  const plain = Buffer.from([...magic, 0x20, 7, 0x18, 0, 0, 97, 98, 99, 0x23, 0, 0, 100]);
  // With a window, a size of eight bytes and a checksum.
  const checked = Buffer.from([...magic, 0xc4, 0x58, 3, 0, 0, 0, 0, 0, 0, 0, 0x19, 0, 0, 97, 98, 99, 1, 2, 3, 4]);
  const skippable = Buffer.from([0x5a, 0x2a, 0x4d, 0x18, 2, 0, 0, 0, 1, 2]);
  for (const whole of [plain, checked, Buffer.concat([plain, checked]), Buffer.concat([skippable, plain])]) {
    expect(isWholeZstd(whole)).toBe(true);
    expect(isWholeZstd(Buffer.concat([whole, Buffer.from('x')]))).toBe(false);
  }
  for (const one of [plain, checked]) {
    for (let end = 0; end < one.length; end += 1) expect(isWholeZstd(one.subarray(0, end)), `${end}`).toBe(false);
  }
  expect(isWholeZstd(Buffer.from('{"a": 1, "b": 2}'))).toBe(false);
});
