/**
 * Makes the frames of an append that is not acknowledged unreadable. A later start finds none of these frames, or drops
 * their commit because of a gap. The file is opened a second time, because a failed sync is final for its descriptor.
 */
import type { Disk } from './disk.ts';
import { frameHeaderBytes } from './segment.ts';

const zeros = Buffer.alloc(frameHeaderBytes);

/** Durable when it returns. The first head is erased last: until then the commit has its start and a gap. */
export async function eraseHeads(disk: Disk, path: string, offsets: readonly number[]): Promise<void> {
  const file = await disk.open(path, 'log');
  try {
    for (const offset of [...offsets].reverse()) await file.write([zeros], offset);
  } finally {
    await file.close();
  }
}
