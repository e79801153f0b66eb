/**
 * Makes frames of an append that is not acknowledged unreadable: a start finds none of them, or a commit with a hole,
 * which it drops. The file is opened once more, since an earlier failed sync is final for the descriptor that had it.
 */
import type { Disk } from './disk.ts';
import { frameHeaderBytes } from './segment.ts';

const zeros = Buffer.alloc(frameHeaderBytes);

/** Durable when it returns. The first head goes last: until then the commit has its start, and a hole. */
export async function eraseHeads(disk: Disk, path: string, offsets: readonly number[]): Promise<void> {
  const file = await disk.open(path, 'log');
  try {
    for (const offset of [...offsets].reverse()) await file.write([zeros], offset);
  } finally {
    await file.close();
  }
}
