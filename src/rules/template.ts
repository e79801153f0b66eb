/**
 * JSON templates with placeholders: `{"time": ${now}, "for": "${device.name}"}`. Outside a string a placeholder becomes
 * the JSON of its value; inside a string, the string's content. A template is compiled once. Writing only joins
 * strings, so numbers keep every digit.
 */
import { Fault } from '../base/errors.ts';
import { type Json, readJson, writeJson } from '../value/json.ts';

const roots = ['now', 'method', 'params', 'device', 'client', 'shared', 'server', 'latest'] as const;
type Root = (typeof roots)[number];

/** `${shared.a.b}`: root `shared`, rest `a.b`. */
export interface Placeholder {
  root: Root;
  rest: string;
  inString: boolean;
}

export interface Template {
  /** The literal parts: one more than there are placeholders. */
  texts: string[];
  placeholders: Placeholder[];
}

/** Throws an Error that names the fault of the template. */
export function compileTemplate(source: string): Template {
  const texts: string[] = [];
  const placeholders: Placeholder[] = [];
  let start = 0;
  let inString = false;
  for (let at = 0; at < source.length; at += 1) {
    const letter = source[at];
    if (letter === '\\' && inString) at += 1;
    else if (letter === '"') inString = !inString;
    else if (letter === '$' && source[at + 1] === '{') {
      const end = source.indexOf('}', at);
      if (end < 0) throw new Error(`"${source.slice(at, at + 30)}" has no closing brace`);
      placeholders.push(placeholderOf(source.slice(at + 2, end).trim(), inString));
      texts.push(source.slice(start, at));
      start = end + 1;
      at = end;
    }
  }
  texts.push(source.slice(start));
  const template = { texts, placeholders };
  checkJson(template);
  return template;
}

/** Returns the JSON. `valueAt` returns the value of a placeholder as JSON; undefined when there is none. */
export function writeTemplate(
  { texts, placeholders }: Template,
  valueAt: (placeholder: Placeholder) => string | undefined,
): string {
  let written = texts[0]!;
  for (const [n, placeholder] of placeholders.entries()) {
    const value = valueAt(placeholder);
    written += placeholder.inString ? textInString(value) : (value ?? 'null');
    written += texts[n + 1]!;
  }
  return written;
}

/** Returns the value at a path like `params.a.0.b`: members by name, items by number. */
export function memberAt(json: Json, path: string): Json | undefined {
  let value: Json | undefined = json;
  for (const name of path === '' ? [] : path.split('.')) {
    if (value instanceof Map) value = value.get(name);
    else if (Array.isArray(value)) value = /^\d{1,9}$/.test(name) ? value[Number(name)] : undefined;
    else return undefined;
  }
  return value;
}

function placeholderOf(path: string, inString: boolean): Placeholder {
  const point = path.indexOf('.');
  const root = roots.find((name) => name === (point < 0 ? path : path.slice(0, point)));
  const rest = point < 0 ? '' : path.slice(point + 1);
  if (!root) throw new Error(`\${${path}} is unknown: it must begin with ${roots.join(', ')}`);
  const isAlone = root === 'now' || root === 'method';
  if (isAlone && rest !== '') throw new Error(`\${${path}} is unknown: ${root} has no members`);
  if (root === 'device' && rest !== 'name' && rest !== 'id') {
    throw new Error(`\${${path}} is unknown: a device has name and id`);
  }
  if (!isAlone && root !== 'params' && rest === '') throw new Error(`\${${path}} names no key`);
  return { root, rest, inString };
}

function checkJson(template: Template): void {
  const sample = writeTemplate(template, () => undefined);
  try {
    readJson(Buffer.from(sample));
  } catch (error) {
    if (!(error instanceof Fault)) throw error;
    throw new Error(`it is not JSON: ${error.message.replace('The body is not valid JSON: ', '')}`);
  }
}

/** Returns a string without its quotes, any other value as its JSON, escaped for use inside a string. */
function textInString(value: string | undefined): string {
  if (value === undefined || value === 'null') return '';
  if (value.startsWith('"')) return value.slice(1, -1);
  return JSON.stringify(value).slice(1, -1);
}

export function jsonText(json: Json | undefined): string | undefined {
  return json === undefined ? undefined : writeJson(json);
}
