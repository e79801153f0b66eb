/**
 * JSON bodies: read, checked against the schema of the route, and the members that many of them have. Bodies are
 * lenient: members that a schema does not know are ignored, absent and null mean the same. Whatever is wrong is a 400
 * that names the member.
 */
import { badRequest, ErrorCode, Fault } from '../base/errors.ts';
import { limits } from '../base/limits.ts';
import * as Type from '../base/schema.ts';
import type { HttpRequest } from '../uws/server.ts';
import { type Json, readJson, startOfJson } from '../value/json.ts';

export const text = Type.Optional(Type.Union([Type.String(), Type.Null()]));
export const reference = Type.Optional(Type.Union([Type.Object({ id: text, entityType: text }), Type.Null()]));
export const version = Type.Optional(
  Type.Union([Type.Integer({ description: 'As it was read: a save of something older is 409' }), Type.Null()]),
);
export const flag = Type.Optional(Type.Union([Type.Boolean(), Type.Null()]));
export const anything = Type.Optional(Type.Unknown({ description: 'Any JSON; kept as it is' }));

export const contactBody = {
  country: text,
  state: text,
  city: text,
  address: text,
  address2: text,
  zip: text,
  phone: text,
  email: text,
};

export function bodyReader(schema: Type.Schema | undefined): (request: HttpRequest) => unknown {
  if (!schema) return () => undefined;
  return (request) => {
    checkContentType(request.header('content-type'));
    const body = parseJson(request.body);
    const fault = Type.faultOf(schema, body);
    if (fault) throw badRequest('body', `Validation error: ${fault.path.join('.') || 'the body'} ${fault.message}`);
    return body;
  };
}

export function checkContentType(contentType: string): void {
  if (contentType === '' || /^application\/([a-z.+-]+\+)?json\b/i.test(contentType)) return;
  const message = `Content type '${contentType.slice(0, 100)}' not supported: send application/json`;
  throw new Fault(415, ErrorCode.badRequest, 'media_type', message);
}

/** The values of entities need no exact numbers. */
export function parseJson(body: Buffer): unknown {
  readExactJson(body);
  return parsed(body);
}

/** Refuses what is malformed, too deep or not UTF-8. */
export function readExactJson(body: Buffer): Json {
  if (body.length === 0) throw badRequest('body_missing', 'Required request body is missing');
  try {
    return readJson(body);
  } catch (error) {
    throw error instanceof Fault ? withMember(error, body) : error;
  }
}

function parsed(body: Buffer): unknown {
  return JSON.parse(body.toString('utf8', startOfJson(body)));
}

/** Faults of a value inside well-formed JSON, and what the value is. */
const valueFaults: Record<string, (value: unknown, depth: number) => boolean> = {
  nul_character: (value) => typeof value === 'string' && value.includes('\0'),
  lone_surrogate: (value) => typeof value === 'string' && /\p{Surrogate}/u.test(value),
  json_too_deep: (_value, depth) => depth > limits.jsonDepthMax,
};

function withMember(fault: Fault, body: Buffer): Fault {
  const isCulprit = valueFaults[fault.reason];
  if (!isCulprit) return fault;
  const path = pathTo(parsed(body), isCulprit);
  return path === undefined ? fault : badRequest(fault.reason, `Validation error: ${path}: ${fault.message}`);
}

/** The first members on the way to the value that `isCulprit` means. */
function pathTo(root: unknown, isCulprit: (value: unknown, depth: number) => boolean): string | undefined {
  const open: { value: unknown; path: string[]; depth: number }[] = [{ value: root, path: [], depth: 1 }];
  for (let next = open.pop(); next; next = open.pop()) {
    const { value, path, depth } = next;
    if (isCulprit(value, depth)) return path.join('.') || 'the body';
    if (typeof value !== 'object' || value === null) continue;
    for (const [name, member] of Object.entries(value)) {
      const below = path.length < pathPartsMax ? [...path, name.slice(0, nameCharsMax)] : path;
      if (isCulprit(name, depth)) return below.join('.');
      open.push({ value: member, path: below, depth: depth + 1 });
    }
  }
  return undefined;
}

const pathPartsMax = 4;
const nameCharsMax = 40;
