/**
 * An exclusive lock on a file (flock) that the kernel drops with the last process that holds it open. The lock holds
 * for all processes of one kernel, in any container or pid namespace, and for all hosts where a network file system
 * supports flock. Node has no such call: the program `flock` takes the lock on a descriptor that both processes share.
 */
import { spawn } from 'node:child_process';
import { messageOf, StartError } from './errors.ts';

/** The exit code of `flock -n` when another open file holds the lock. */
const heldExitCode = 1;

/** Locks the open file of `descriptor` without waiting. Resolves with false when another open file has the lock. */
export function tryLock(descriptor: number, path: string): Promise<boolean> {
  return new Promise((resolve, reject) => {
    const helper = spawn('flock', ['-n', '3'], { stdio: ['ignore', 'ignore', 'pipe', descriptor] });
    let text = '';
    helper.stderr!.on('data', (chunk: Buffer) => {
      text += chunk.toString();
    });
    helper.once('error', (error: NodeJS.ErrnoException) => {
      const why = error.code === 'ENOENT' ? 'the program "flock" is missing: install util-linux' : messageOf(error);
      reject(new StartError(`The file ${path} cannot be locked: ${why}.`));
    });
    helper.once('close', (code) => {
      if (code === 0) resolve(true);
      else if (code === heldExitCode && text === '') resolve(false);
      else {
        const why = text.trim() || `flock ended with code ${code}`;
        reject(new StartError(`The file ${path} cannot be locked: ${why}. Its file system must support flock.`));
      }
    });
  });
}
