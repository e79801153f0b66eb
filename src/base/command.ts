/**
 * The commands of an operator share this: their words, the lines on stdout, and the line and exit code of a command
 * that failed.
 */
import { parseArgs } from 'node:util';
import { Fault, isBug, messageOf, StartError } from './errors.ts';

// A reader that leaves, as `head` does, does not end a command that changes something: its further lines are dropped.
process.stdout.on('error', () => {});

/**
 * Runs a command with the words of its command line. The command decides by `process.exitCode` whether it succeeded. An
 * error is printed and ends the process at once.
 */
export function runCommand(run: (words: string[]) => Promise<void> | void): void {
  const end = async () => await run(process.argv.slice(2));
  end().catch((error: unknown) => {
    printFailure(error);
    process.exit(1);
  });
}

/** Divides words into options (`--name VALUE`) and others. Throws one sentence and the usage for an unknown option. */
export function parseWords<Name extends string>(
  words: string[],
  names: readonly Name[],
  usage: string,
): { options: Partial<Record<Name, string>>; others: string[] } {
  try {
    const options = Object.fromEntries(names.map((name) => [name, { type: 'string' as const }]));
    const { values, positionals } = parseArgs({ args: words, options, allowPositionals: true });
    return { options: values as Partial<Record<Name, string>>, others: positionals };
  } catch (error) {
    // The first sentence; the next one is for authors of commands.
    throw new StartError(`${messageOf(error).split('. ')[0]}; ${usage}`);
  }
}

export function printLine(line: string): void {
  process.stdout.write(`${line}\n`);
}

/** Returns a value as one line of JSON; numbers of 64 bits become strings. */
export function jsonLine(value: unknown): string {
  return JSON.stringify(value, (_name, member: unknown) => (typeof member === 'bigint' ? member.toString() : member));
}

/** Prints why a command failed: the sentence for the operator, or the stack of a bug. The exit code will be 1. */
export function printFailure(error: unknown): void {
  const text = error instanceof Error && !isForOperator(error) ? error.stack : sentenceOf(error);
  process.stderr.write(`millrace: ${text}\n`);
  process.exitCode = 1;
}

function sentenceOf(error: unknown): string {
  const { code } = error as { code?: unknown };
  const isRefusedFile = code === 'EACCES' && !(error instanceof StartError);
  return isRefusedFile ? `${messageOf(error)}: call this as the user that runs Millrace.` : messageOf(error);
}

/** True for an error of the command line, the settings, a store, the network or a file. Any other error is a bug. */
function isForOperator(error: Error): boolean {
  if (error instanceof StartError) return true;
  if (error instanceof Fault) return !isBug(error);
  return !(error instanceof TypeError) && (error as { code?: unknown }).code !== undefined;
}
