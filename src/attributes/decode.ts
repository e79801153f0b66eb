/**
 * Decodes the bytes of an attribute message into typed values by key (docs/http.md#attributes). A null stores nothing.
 */
import { badRequest } from '../base/errors.ts';
import { limits } from '../base/limits.ts';
import { keyFault } from '../telemetry/keys.ts';
import { type Json, readJson } from '../value/json.ts';
import type { ReadBody } from '../value/lenient.ts';
import { type TypedValue, typedValue } from '../value/typed.ts';

export function decodeAttributes(
  body: Uint8Array,
  readBody: ReadBody,
  castNumericStrings: boolean,
): Map<string, TypedValue> {
  return attributesOf(readBody(body, readJson), castNumericStrings);
}

export function attributesOf(json: Json, castNumericStrings: boolean): Map<string, TypedValue> {
  if (!(json instanceof Map)) throw badRequest('wrong_shape', 'The body must be an object of attributes.');
  if (json.size > limits.attributeKeysPerMessageMax) {
    throw badRequest('too_many_keys', `A message may hold ${limits.attributeKeysPerMessageMax} attributes.`);
  }
  const entries = new Map<string, TypedValue>();
  for (const [key, member] of json) {
    const fault = keyFault(key);
    if (fault) throw fault;
    const value = typedValue(member, castNumericStrings);
    if (value) entries.set(key, value);
  }
  return entries;
}
