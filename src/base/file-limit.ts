/** Reads from /proc how many files this process may open: a worker refuses connections before the system does. */
import { readFileSync } from 'node:fs';
import { limits } from './limits.ts';

const unknownMax = 1024;
const connectionsMin = 64;

export function openFilesMax(): number {
  try {
    const line = /^Max open files\s+(\d+|unlimited)/m.exec(readFileSync('/proc/self/limits', 'utf8'));
    if (!line) return unknownMax;
    return line[1] === 'unlimited' ? 1_000_000 : Number(line[1]);
  } catch {
    return unknownMax;
  }
}

/** Files that a worker may open for connections. */
export function filesForConnections(filesMax = openFilesMax()): number {
  return Math.max(connectionsMin, filesMax - limits.fileReserve);
}
