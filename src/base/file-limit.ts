/** Reads from /proc how many files this process may open: a worker refuses connections before the system does. */
import { readFileSync } from 'node:fs';
import { limits } from './limits.ts';

const unknownMax = 1024;

export function openFilesMax(): number {
  try {
    const line = /^Max open files\s+(\d+|unlimited)/m.exec(readFileSync('/proc/self/limits', 'utf8'));
    if (!line) return unknownMax;
    return line[1] === 'unlimited' ? 1_000_000 : Number(line[1]);
  } catch {
    return unknownMax;
  }
}

export const raiseFileLimit = 'raise it (ulimit -n, LimitNOFILE of systemd, ulimits of a container)';

/** Returns why nothing can start with this limit, in a sentence that says what to do. */
export function fileLimitFault(filesMax = openFilesMax()): string | undefined {
  if (filesMax >= limits.filesMin) return undefined;
  return `The file limit is ${filesMax}, and a process of Millrace needs ${limits.filesMin}: ${raiseFileLimit}.`;
}

/** Files that a worker may open for connections. */
export function filesForConnections(filesMax = openFilesMax()): number {
  return Math.max(0, filesMax - limits.fileReserve);
}
