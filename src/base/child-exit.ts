/** How a child process ended, in the words of a log line. */
import type { ChildProcess } from 'node:child_process';
import { messageOf } from './errors.ts';

export function exitReason(code: number | null, signal: NodeJS.Signals | null): string {
  return signal ? `signal ${signal}` : `exit code ${code}`;
}

/** Resolves when the process has ended, and also when it cannot be started. Call it right after the fork. */
export function exitOf(child: ChildProcess): Promise<string> {
  return new Promise((resolve) => {
    child.once('error', (error) => resolve(messageOf(error)));
    child.once('exit', (code, signal) => resolve(exitReason(code, signal)));
  });
}
