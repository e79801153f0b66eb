/**
 * Reading the API document: its operations, values made of its schemas, and whether an answer is one of those it names.
 */
import { Compile } from 'typebox/schema';
import { uuidOfHex } from '../../src/base/uuid.ts';
import type { Random } from './random.ts';

export interface Schema {
  $ref?: string;
  type?: string;
  format?: string;
  enum?: unknown[];
  const?: unknown;
  anyOf?: Schema[];
  items?: Schema;
  properties?: Record<string, Schema>;
  required?: string[];
  patternProperties?: Record<string, Schema>;
  additionalProperties?: boolean;
  description?: string;
  minimum?: number;
  maximum?: number;
  minLength?: number;
  maxLength?: number;
}

export interface Parameter {
  name: string;
  in: 'path' | 'query';
  required: boolean;
  explode?: boolean;
  schema: Schema;
}

export interface Operation {
  method: string;
  path: string;
  tags: string[];
  operationId: string;
  description: string;
  deprecated?: boolean;
  security: Record<string, unknown>[];
  parameters: Parameter[];
  requestBody?: { required: boolean; content: Record<string, { schema: Schema }> };
  responses: Record<string, { description: string; content?: Record<string, { schema: Schema }> }>;
  /** The address that the document names for the path; undefined = the address that serves the document. */
  server: string | undefined;
}

/** Members of a path: its operations by method, and the servers that have them. */
interface PathItem {
  servers?: { url: string }[];
  [method: string]: unknown;
}

export interface Document {
  openapi: string;
  info: { title: string; version: string };
  paths: Record<string, PathItem>;
  components: { schemas: Record<string, Schema>; securitySchemes: Record<string, Record<string, unknown>> };
}

export function operationsOf({ paths }: Document): Operation[] {
  return Object.entries(paths).flatMap(([path, { servers, ...methods }]) =>
    Object.entries(methods).map(([method, described]) => {
      const operation = described as Omit<Operation, 'method' | 'path' | 'server'>;
      return { ...operation, method: method.toUpperCase(), path, server: servers?.[0]?.url };
    }),
  );
}

export function resolved(document: Document, schema: Schema): Schema {
  return schema.$ref ? document.components.schemas[schema.$ref.split('/').at(-1)!]! : schema;
}

/** Returns the fault of an answer; '' when the document names it. */
export function mismatch(document: Document, operation: Operation, status: number, type: string, text: string): string {
  const response = operation.responses[status];
  if (!response) return `status ${status} is not in the document`;
  const { content } = response;
  if (!content) return text === '' ? '' : `status ${status} has no body in the document`;
  const plainType = type.split(';')[0]!.trim();
  const media = content[plainType] ?? content['*/*'];
  if (!media) {
    // An empty answer is right only when it is one of several.
    return text === '' && Object.keys(content).length > 0 ? '' : `content type ${type} is not in the document`;
  }
  if (plainType !== 'application/json' || !content[plainType]) return '';
  const validator = Compile({ ...media.schema, components: document.components } as never);
  const value = JSON.parse(text) as unknown;
  return validator.Check(value) ? '' : JSON.stringify(validator.Errors(value)).slice(0, 1_000);
}

/** Strings that people and attackers use as names. */
const texts = [
  ...[
    'pump-7',
    'Ünïcode ☃ 🚀',
    "'; drop table device; --",
    '" or 1=1',
    'a,b',
    '%25%',
    'a\\b',
    '__proto__',
    'constructor',
  ],
  ...['<b>bold</b>', ' ', '../../etc/passwd', 'x'.repeat(300), '0', 'null', '{{7*7}}', '$1', 'a\nb'],
];

export function someValue(document: Document, given: Schema, random: Random, depth = 0): unknown {
  const schema = resolved(document, given);
  if (schema.anyOf) return someValue(document, random.pick(schema.anyOf), random, depth);
  if (schema.enum) return random.pick(schema.enum);
  if (schema.const !== undefined) return schema.const;
  switch (schema.type) {
    case 'null':
      return null;
    case 'boolean':
      return random.next() < 0.5;
    case 'integer': {
      const { minimum = -5, maximum = 1_000_000 } = schema;
      return Math.min(maximum, minimum + random.below(random.pick([1, 10, 1_000])));
    }
    case 'number':
      return random.pick([-1.5, 0, 42, 1e9]);
    case 'string':
      if (schema.format === 'uuid') return uuid(random);
      return random
        .pick(texts)
        .slice(0, schema.maxLength)
        .padEnd(schema.minLength ?? 0, 'x');
    case 'array':
      return Array.from({ length: random.below(3) }, () => someValue(document, schema.items!, random, depth + 1));
    case 'object': {
      const members: [string, unknown][] = [];
      for (const [name, member] of Object.entries(schema.properties ?? {})) {
        if (!schema.required?.includes(name) && random.next() < 0.5) continue;
        members.push([name, someValue(document, member, random, depth + 1)]);
      }
      const [record] = Object.values(schema.patternProperties ?? {});
      for (let i = record ? 1 + random.below(3) : 0; i > 0; i -= 1) {
        members.push([random.pick(texts), someValue(document, record!, random, depth + 1)]);
      }
      return Object.fromEntries(members);
    }
    default: {
      if (depth > 3) return 1;
      return random.pick<unknown>([null, true, 42, 1.5, 'text', [1, 'b'], { a: { b: 1 } }]);
    }
  }
}

/** Returns a value that the schema refuses; undefined when it accepts every value. */
export function wrongValueOf(document: Document, given: Schema): unknown {
  const schema = resolved(document, given);
  const types = (schema.anyOf ?? [schema]).map((each) => resolved(document, each)).flatMap(({ type }) => type ?? []);
  if (schema.anyOf?.some((each) => resolved(document, each).enum)) return 'NO_SUCH_WORD';
  if (schema.enum) return 'NO_SUCH_WORD';
  if (types.length === 0) return undefined;
  if (!types.includes('object')) return { wrong: true };
  return types.includes('array') ? 'wrong' : ['wrong'];
}

function uuid(random: Random): string {
  const hex = Array.from({ length: 32 }, () => random.below(16).toString(16)).join('');
  return uuidOfHex(hex);
}
