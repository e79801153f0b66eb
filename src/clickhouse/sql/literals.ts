/** Writes values and names in ClickHouse's SQL, and values as the HTTP interface takes them in parameters. */
import { assert } from '../../base/errors.ts';

const escapes: Record<string, string> = { '\\': '\\\\', '\t': '\\t', '\n': '\\n', '\r': '\\r', '\0': '\\0' };

/** Escapes as in TabSeparated. */
export function escaped(value: string): string {
  return value.replace(/[\\\t\n\r\0]/g, (character) => escapes[character]!);
}

export function stringLiteral(value: string): string {
  return `'${escaped(value).replaceAll("'", "\\'")}'`;
}

export function integerLiteral(value: number): string {
  assert(Number.isSafeInteger(value), 'a literal of an integer is a safe integer');
  return String(value);
}

export function identifier(name: string): string {
  return `\`${name.replace(/[\\`]/g, '\\$&')}\``;
}
