/** Prints what the commands of an operator print: lines on stdout, and the line of a command that failed. */
import { StartError } from './errors.ts';

// A reader that leaves, as `head` does, does not end a command that changes something: its further lines are dropped.
process.stdout.on('error', () => {});

export function printLine(line: string): void {
  process.stdout.write(`${line}\n`);
}

/** Returns a value as one line of JSON; numbers of 64 bits become strings. */
export function jsonLine(value: unknown): string {
  return JSON.stringify(value, (_name, member: unknown) => (typeof member === 'bigint' ? member.toString() : member));
}

/** Prints why a command failed: the sentence for the operator, or the stack of a bug. The exit code will be 1. */
export function printFailure(error: unknown): void {
  process.stderr.write(`millrace: ${error instanceof StartError ? error.message : (error as Error).stack}\n`);
  process.exitCode = 1;
}
