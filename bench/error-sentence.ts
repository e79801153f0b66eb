/**
 * What a benchmark says of an error that ended it: one sentence, and which engine had ended before. An error in the
 * code of the benchmark itself has its stack.
 */
import { takeEndedEngines } from '../test/harness/running-engines.ts';

const codeErrors = [TypeError, ReferenceError, RangeError, SyntaxError];
const linesMax = 5;

export function sentenceOf(error: unknown): string {
  if (!(error instanceof Error)) return String(error);
  const { cause } = error;
  const isOwn = cause === undefined && codeErrors.some((kind) => error instanceof kind);
  const text = isOwn ? (error.stack ?? error.message) : error.message;
  const because = cause instanceof Error ? `: ${causeOf(cause)}` : '';
  const ended = takeEndedEngines().map((engine) => {
    const lines = engine.tail(linesMax).trim();
    // An engine that does not become ready is an error that has its lines already.
    if (lines !== '' && text.includes(lines)) return '';
    return `\nAn engine had ended before.${lines === '' ? '' : ` Its last lines:\n${lines}`}`;
  });
  return `${text}${because}${ended.join('')}`;
}

/** The error of a connect to several addresses has no message, and that of a name only the call of the resolver. */
export function causeOf(cause: Error): string {
  const { code = '', hostname } = cause as Error & { code?: string; hostname?: string };
  if (code === 'ENOTFOUND') return `no address is known for the name "${hostname}"`;
  if (code === 'EAI_AGAIN') return `the name server gave no answer for "${hostname}"`;
  if (cause instanceof AggregateError && cause.message === '')
    return cause.errors.map((each: Error) => each.message).join(', ');
  return cause.message;
}
