/** Writes a tar archive (POSIX ustar) of small files that are in memory, for `npm run bundle`. */

export interface TarFile {
  /** A path of at most 100 bytes of ASCII. */
  name: string;
  content: Buffer;
}

const blockBytes = 512;

export function tar(files: readonly TarFile[], nowMs: number): Buffer {
  const parts = files.flatMap(({ name, content }) => [
    header(name, content.length, nowMs),
    content,
    Buffer.alloc((blockBytes - (content.length % blockBytes)) % blockBytes),
  ]);
  // Two empty blocks are the end.
  return Buffer.concat([...parts, Buffer.alloc(2 * blockBytes)]);
}

function header(name: string, bytes: number, nowMs: number): Buffer {
  const block = Buffer.alloc(blockBytes);
  block.write(name, 0, 100, 'ascii');
  block.write('0000600\0', 100);
  block.write('0000000\0', 108);
  block.write('0000000\0', 116);
  block.write(`${bytes.toString(8).padStart(11, '0')}\0`, 124);
  block.write(
    `${Math.floor(nowMs / 1000)
      .toString(8)
      .padStart(11, '0')}\0`,
    136,
  );
  block.write('0', 156);
  block.write('ustar\x0000', 257);
  // The checksum is the sum of all bytes, with spaces in its own place.
  block.fill(' ', 148, 156);
  const sum = block.reduce((total, byte) => total + byte, 0);
  block.write(`${sum.toString(8).padStart(6, '0')}\0 `, 148);
  return block;
}
