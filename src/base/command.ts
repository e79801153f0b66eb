/** Prints what the commands of an operator print: lines on stdout, and the line of a command that failed. */
import { Fault, isBug, messageOf, StartError } from './errors.ts';

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
  const text = error instanceof Error && !isForOperator(error) ? error.stack : messageOf(error);
  process.stderr.write(`millrace: ${text}\n`);
  process.exitCode = 1;
}

/** True for an error of the command line, the settings, a store, the network or a file. Any other error is a bug. */
function isForOperator(error: Error): boolean {
  if (error instanceof StartError) return true;
  if (error instanceof Fault) return !isBug(error);
  const { code } = error as { code?: unknown };
  if (error instanceof TypeError) return typeof code === 'string' && code.startsWith('ERR_PARSE_ARGS');
  return code !== undefined;
}
