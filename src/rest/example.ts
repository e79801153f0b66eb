/** Makes an example of a schema for the API document, so that a reader sees what an answer looks like. */
import type { Schema } from '../base/schema.ts';

type Json = null | boolean | number | string | Json[] | { [name: string]: Json };

/** Values of members whose schema says only their type, or nothing. */
const byName: Record<string, Json> = {
  accessToken: 'A1_TEST_TOKEN',
  additionalInfo: { description: 'North field' },
  columnLabels: ['Device', 'Average'],
  credentialsId: 'A1_TEST_TOKEN',
  credentialsValue: null,
  dataTable: [{ Device: 'pump-7', Average: 21.5 }],
  description: 'North field',
  deviceData: { configuration: { type: 'DEFAULT' }, transportConfiguration: { type: 'DEFAULT' } },
  email: 'ada@orchard.example',
  firstName: 'Ada',
  key: 'temperature',
  label: 'North field',
  lastName: 'Lovelace',
  method: 'setGate',
  name: 'pump-7',
  params: { open: true },
  profileData: { configuration: { type: 'DEFAULT' }, transportConfiguration: { type: 'DEFAULT' } },
  response: { done: true },
  title: 'Orchard',
  type: 'pump',
  value: 21.5,
};
const uuid = '784f394c-42b6-435a-983c-b7beff2784f9';
const epochMs = 1_700_000_000_000;
/** A key of telemetry, in a record of values by key. */
const anyKey = 'temperature';

/** `name`: of the member that has this schema. */
export function exampleOf(schema: Schema, name = ''): Json {
  if (schema.anyOf) return exampleOf(schema.anyOf[0]!, name);
  if (schema.const !== undefined) return schema.const;
  if (schema.enum) return schema.enum[0]!;
  switch (schema.type) {
    case 'object':
      return objectOf(schema);
    case 'array':
      return isArrayOf(byName[name], schema) ? byName[name]! : [exampleOf(schema.items!, name)];
    case 'string':
      return stringOf(schema, name);
    case 'integer':
      return integerOf(schema, name);
    case 'number':
      return 21.5;
    case 'boolean':
      return !/^(hasNext|expired)$/.test(name);
    case 'null':
      return null;
    default:
      return byName[name] ?? 21.5;
  }
}

function objectOf({ properties, patternProperties }: Schema): Json {
  if (patternProperties) return { [anyKey]: exampleOf(Object.values(patternProperties)[0]!, anyKey) };
  return Object.fromEntries(Object.entries(properties ?? {}).map(([name, each]) => [name, exampleOf(each, name)]));
}

/** Lists of objects with members of their own come from their schema. */
function isArrayOf(value: Json | undefined, { items }: Schema): boolean {
  return Array.isArray(value) && !items?.properties;
}

function stringOf({ format, pattern, minLength = 0 }: Schema, name: string): string {
  if (format === 'uuid') return uuid;
  const known = byName[name];
  const text = typeof known === 'string' ? known : name === '' ? 'text' : name;
  if (pattern !== undefined && !new RegExp(pattern, 'u').test(text)) return '1'.padEnd(minLength, '1');
  return text.padEnd(minLength, 'x');
}

function integerOf({ minimum = 1, maximum = epochMs, description = '' }: Schema, name: string): number {
  if (/^Epoch milliseconds/.test(description) || /(Ts|Time)$/.test(name)) return Math.min(maximum, epochMs);
  return Math.max(minimum, Math.min(1, maximum));
}
