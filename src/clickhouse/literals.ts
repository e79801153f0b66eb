/** Writes values as literals of ClickHouse's SQL, and texts as the HTTP interface takes them in parameters. */
import { assert } from '../base/errors.ts';

const escapes: Record<string, string> = { '\\': '\\\\', '\t': '\\t', '\n': '\\n', '\r': '\\r', '\0': '\\0' };

/** Escapes as in TabSeparated. */
export function escaped(text: string): string {
  return text.replace(/[\\\t\n\r\0]/g, (character) => escapes[character]!);
}

export function stringLiteral(text: string): string {
  return `'${escaped(text).replaceAll("'", "\\'")}'`;
}

export function integerLiteral(value: number): string {
  assert(Number.isSafeInteger(value), 'a literal of an integer is a safe integer');
  return String(value);
}
