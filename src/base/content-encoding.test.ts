import { gzipSync } from 'node:zlib';
import { expect, test } from 'vitest';
import { unpack } from './content-encoding.ts';
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
