/**
 * Reads settings by a schema: a value comes from the environment, else from the operator's file, else from the
 * defaults. Gathers each setting with its origin, and every fault, so that one run of `npm run config` shows all of
 * them.
 */
import { readFileSync } from 'node:fs';
import { parse } from 'yaml';
import { messageOf, StartError } from '../errors.ts';
import type * as Type from '../schema.ts';
import { nearest } from './setting-names.ts';
import { allowedUnits, parseWithUnit, readable, type SettingUnit, unitOfSetting } from './units.ts';

const placeholder = /^\$\{([A-Z][A-Z0-9_]*):(.*)\}$/s;

type Tree = { [key: string]: unknown };

export interface Setting {
  /** The place of the setting in a settings file: `http.port`. */
  path: string;
  /** The name of the setting in the environment. */
  name: string;
  /** Undefined when it is faulty. */
  value: unknown;
  unit: SettingUnit | undefined;
  isSecret: boolean;
  /** `default`, `environment`, or `file` and its path. */
  from: string;
}

interface Sources {
  defaults: Tree;
  /** The operator's file; empty when there is none. */
  file: Tree;
  /** The path of `file`. */
  filePath: string;
  environment: NodeJS.ProcessEnv;
}

export interface Reading {
  /** The tree of values; complete when there is no fault. */
  values: Tree;
  settings: Setting[];
  /** The faults as sentences. */
  faults: string[];
}

interface Raw {
  text: string;
  from: string;
  /** A file that may contain a secret: its content is never shown. */
  isHidden: boolean;
}

export function readSettings(schema: Type.ObjectSchema, sources: Sources): Reading {
  const reading: Reading = { values: {}, settings: [], faults: [] };
  reading.values = readGroup(schema.properties, sources.defaults, sources.file, '', sources, reading);
  return reading;
}

function readGroup(
  properties: Type.Properties,
  defaults: Tree,
  file: unknown,
  path: string,
  sources: Sources,
  reading: Reading,
): Tree {
  const given = fileGroup(properties, file, path, reading);
  const values: Tree = {};
  for (const [key, node] of Object.entries(properties)) {
    const childPath = path === '' ? key : `${path}.${key}`;
    values[key] = node.properties
      ? readGroup(node.properties, defaults[key] as Tree, given[key], childPath, sources, reading)
      : readOne(node, String(defaults[key]), given[key], childPath, sources, reading);
  }
  return values;
}

/** Returns the keys that the operator's file has here. */
function fileGroup(known: Type.Properties, file: unknown, path: string, { faults }: Reading): Tree {
  if (file === undefined || file === null) return {};
  if (typeof file !== 'object' || Array.isArray(file)) {
    faults.push(`Setting ${path} must hold the keys ${Object.keys(known).join(', ')}.`);
    return {};
  }
  const prefix = path === '' ? '' : `${path}.`;
  for (const key of Object.keys(file)) {
    if (known[key]) continue;
    faults.push(`Unknown setting ${prefix}${key}. Did you mean ${prefix}${nearest(key, Object.keys(known))}?`);
  }
  return file as Tree;
}

function readOne(
  node: Type.Schema,
  fallback: string,
  file: unknown,
  path: string,
  sources: Sources,
  { settings, faults }: Reading,
): unknown {
  const key = path.slice(path.lastIndexOf('.') + 1);
  const [, name = '', text = fallback] = placeholder.exec(fallback) ?? [];
  const unit = node.type === 'integer' ? unitOfSetting(key) : undefined;
  const setting: Setting = { path, name, value: undefined, unit, isSecret: isSecretKey(key), from: 'default' };
  settings.push(setting);
  try {
    const { environment, filePath } = sources;
    const raw = fromEnvironment(name, environment) ??
      fromFile(file, filePath, environment) ?? { text, from: 'default', isHidden: false };
    setting.from = raw.from;
    const must = mustBe(node, raw.text, unit);
    if (must === '') setting.value = valueFrom(node, raw.text, unit);
    else faults.push(refusal(setting, raw, must));
  } catch (error) {
    if (!(error instanceof StartError)) throw error;
    faults.push(error.message);
  }
  return setting.value;
}

function refusal({ path, name, isSecret }: Setting, { text, isHidden }: Raw, must: string): string {
  const is = isSecret || isHidden ? 'has a value that is not shown' : `is "${text}"`;
  return `Setting ${name === '' ? path : `${path} (${name})`} ${is}: it must be ${must}.`;
}

function fromEnvironment(name: string, environment: NodeJS.ProcessEnv): Raw | undefined {
  const path = environment[`${name}_FILE`];
  const text = environment[name];
  if (!path) return text === undefined ? undefined : { text, from: 'environment', isHidden: false };
  try {
    return { text: readFileSync(path, 'utf8').trimEnd(), from: `file ${path} (${name}_FILE)`, isHidden: true };
  } catch (error) {
    throw new StartError(`${name}_FILE names ${path}, which cannot be read: ${messageOf(error)}.`);
  }
}

/** A settings file may also contain placeholders. */
function fromFile(value: unknown, path: string, environment: NodeJS.ProcessEnv): Raw | undefined {
  if (value === undefined || value === null) return undefined;
  const from = `file ${path}`;
  const match = placeholder.exec(String(value));
  if (!match) return { text: String(value), from, isHidden: false };
  return fromEnvironment(match[1]!, environment) ?? { text: match[2]!, from, isHidden: false };
}

/** Returns what the value must be; '' when the value is valid. */
function mustBe(node: Type.Schema, text: string, unit: SettingUnit | undefined): string {
  if (node.enum) return node.enum.includes(text) ? '' : `one of ${node.enum.join(', ')}`;
  switch (node.type) {
    case 'boolean':
      return text === 'true' || text === 'false' ? '' : 'true or false';
    case 'integer': {
      const value = integerOf(text, unit);
      const { minimum = 0, maximum = Number.MAX_SAFE_INTEGER } = node;
      if (Number.isInteger(value) && value >= minimum && value <= maximum) return '';
      const number = `a whole number${unit === undefined ? '' : ` of ${unit}`} from ${minimum} to ${maximum}`;
      return unit === undefined ? number : `${number}, or the same with a unit (${allowedUnits(unit)})`;
    }
    default:
      if (node.minLength && text.length < node.minLength) return 'set';
      if (!node.pattern || new RegExp(node.pattern).test(text)) return '';
      return node.description ?? `of the form ${node.pattern}`;
  }
}

function valueFrom(node: Type.Schema, text: string, unit: SettingUnit | undefined): unknown {
  if (node.type === 'boolean') return text === 'true';
  return node.type === 'integer' ? integerOf(text, unit) : text;
}

function integerOf(text: string, unit: SettingUnit | undefined): number {
  const plain = text.trim() === '' ? Number.NaN : Number(text);
  return Number.isNaN(plain) && unit !== undefined ? parseWithUnit(text, unit) : plain;
}

/** Returns every environment name of these trees, with the name of the file that may contain its value. */
export function namesOfSettings(...trees: Tree[]): Set<string> {
  const names = new Set<string>();
  const walk = (node: unknown): void => {
    if (typeof node === 'object' && node !== null) {
      for (const child of Object.values(node)) walk(child);
      return;
    }
    const match = placeholder.exec(String(node));
    if (match) names.add(match[1]!).add(`${match[1]}_FILE`);
  };
  trees.forEach(walk);
  return names;
}

export function readYaml(path: string, what = 'settings file'): Tree {
  let text: string;
  try {
    text = readFileSync(path, 'utf8');
  } catch (error) {
    throw new StartError(`The ${what} ${path} cannot be read: ${messageOf(error)}.`);
  }
  try {
    return (parse(text) as Tree) ?? {};
  } catch (error) {
    throw new StartError(`The ${what} ${path} is not valid YAML: ${messageOf(error).split('\n')[0]}`);
  }
}

function isSecretKey(key: string): boolean {
  return /password|signingKey|secret/i.test(key);
}

/** Returns the value for a reader who may not see secrets; '' when it is empty or faulty. */
export function shownValue({ path, value, unit, isSecret }: Setting): string {
  if (value === undefined || value === '') return '';
  if (isSecret) return '(set)';
  const urls = urlsOfSetting(path, String(value));
  if (urls.length > 0) return urls.map(withoutSecrets).join(',');
  const longer = typeof value === 'number' && unit !== undefined ? readable(value, unit) : '';
  return longer === '' ? String(value) : `${value} (${longer})`;
}

/** Returns the URLs of a setting that holds some; none for another setting. A password may contain a comma. */
export function urlsOfSetting(path: string, value: string): string[] {
  return /\.(url|shards|monitorUrls)$/.test(path) ? value.split(/,\s*(?=[a-z][a-z0-9+.-]*:\/\/)/i) : [];
}

/**
 * Hides the user and password of a URL, and the values of its parameters. An unescaped character may end a URL's login
 * too early, so all up to the last "@" is hidden.
 */
function withoutSecrets(url: string): string {
  const [, scheme = '', rest = ''] = /^([a-z][a-z0-9+.-]*:\/\/)(.*)$/is.exec(url) ?? [];
  if (scheme === '') return /[@=?]/.test(url) ? '(set)' : url;
  const hidden = rest.includes('@') ? `***@${rest.slice(rest.lastIndexOf('@') + 1)}` : rest;
  return scheme + hidden.replace(/=[^&#]*/g, '=***');
}
