/**
 * Reads JSON bodies and checks them against the schema of the route; defines members that many bodies share. Members
 * that a schema does not know are ignored; absent and null mean the same. Every fault is a 400 that names the member.
 */
import { badRequest, Fault } from '../base/errors.ts';
import { nextTurn } from '../base/loop-turns.ts';
import * as Type from '../base/schema.ts';
import { requireBody } from '../uws/missing-body.ts';
import type { HttpRequest } from '../uws/request.ts';
import { type Json, readJson } from '../value/json.ts';
import { plainJsonSteps, readPlainJson, readPlainRows } from '../value/plain-json.ts';
import { nullable } from './shapes.ts';

/** A member that may be absent or null. */
export const optional = <T extends Type.Schema>(schema: T) => Type.Optional(nullable(schema));
export const text = optional(Type.String());
const id = optional(Type.String({ format: 'uuid' }));
export const reference = optional(Type.Object({ id, entityType: text }));
export const version = optional(
  Type.Integer({ description: 'The version that was read; a save of an older one is 409' }),
);
export const flag = optional(Type.Boolean());
export const anything = Type.Optional(
  Type.Unknown({ description: 'Any JSON; kept as it is, a number as a 64-bit float' }),
);

export function bodyReader(schema: Type.Schema | undefined): (request: HttpRequest) => unknown {
  if (!schema) return () => undefined;
  return (request) => {
    checkContentType(request.header('content-type'));
    const body = parseJson(request.body);
    check(schema, body);
    return body;
  };
}

function check(schema: Type.Schema, value: unknown, path: readonly string[] = []): void {
  const fault = Type.faultOf(schema, value);
  if (!fault) return;
  const where = [...path, ...fault.path].join('.') || 'the body';
  throw badRequest('body', `Validation error: ${where} ${fault.message}`);
}

/**
 * Reads a body `{"<name>":[…]}` with more rows than one turn of the loop may read, and checks each of them. Returns all
 * rows; of the other members only that they are valid JSON is checked.
 */
export async function readBodyRows<Row extends Type.Schema>(
  request: Pick<HttpRequest, 'header' | 'body'>,
  name: string,
  row: Row,
  rowsMax: number,
): Promise<Type.Static<Row>[]> {
  const { body } = request;
  checkContentType(request.header('content-type'));
  requireBody(body);
  const rows: Type.Static<Row>[] = [];
  const pieces = readPlainRows(body, name);
  const add = (values: unknown[], first: number) => {
    if (first + values.length > rowsMax) {
      throw badRequest('body', `Validation error: ${name} must not have more than ${rowsMax} items`);
    }
    for (const [i, value] of values.entries()) {
      check(row, value, [name, String(first + i)]);
      rows.push(value as Type.Static<Row>);
    }
  };
  let piece = pieces.next();
  for (; !piece.done; piece = pieces.next()) {
    add(piece.value.rows, piece.value.first);
    await nextTurn();
  }
  const root = piece.value;
  check(Type.Object({ [name]: Type.Array(Type.Unknown()) }), root);
  // A short body is not divided.
  add((root as Record<string, unknown[]>)[name]!, rows.length);
  return rows;
}

/** Reads a body of few values and very long strings, in several turns of the loop, and checks it. */
export async function readLongStrings<Body extends Type.Schema>(
  request: Pick<HttpRequest, 'header' | 'body'>,
  schema: Body,
): Promise<Type.Static<Body>> {
  const { body } = request;
  checkContentType(request.header('content-type'));
  requireBody(body);
  const steps = plainJsonSteps(body);
  let step = steps.next();
  for (; !step.done; step = steps.next()) await nextTurn();
  check(schema, step.value);
  return step.value as Type.Static<Body>;
}

export function checkContentType(contentType: string): void {
  if (contentType !== '' && !/^application\/([a-z.+-]+\+)?json\b/i.test(contentType)) throw notJson(contentType);
}

/** Reads a body whose content type must be JSON. */
export function namedJson(request: HttpRequest): unknown {
  const contentType = request.header('content-type');
  if (!/^\s*application\/json\s*(;|$)/i.test(contentType)) throw notJson(contentType);
  return parseJson(request.body);
}

function notJson(contentType: string): Fault {
  return new Fault('media_type', `Content type '${contentType.slice(0, 100)}' not supported: send application/json`);
}

/** The values of entities need no exact numbers. */
export function parseJson(body: Buffer): unknown {
  requireBody(body);
  return readPlainJson(body);
}

/** Numbers keep their digits. */
export function readExactJson(body: Buffer): Json {
  requireBody(body);
  try {
    return readJson(body);
  } catch (error) {
    // The plain reader throws a fault that names the member.
    if (error instanceof Fault && error.reason !== 'malformed_json') readPlainJson(body);
    throw error;
  }
}
