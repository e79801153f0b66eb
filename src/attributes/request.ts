/**
 * The rules for a device's request to read attributes, which all doors share (docs/http.md#attributes). A request that
 * names no key and no scope is answered with all attributes.
 */
import { badRequest } from '../base/errors.ts';
import { limits } from '../base/limits.ts';
import { nextTurn } from '../base/loop-turns.ts';
import type { Json } from '../value/json.ts';
import { strictForm } from '../value/typed.ts';
import type { Attributes, ScopedRow } from './attributes.ts';
import type { Scope } from './scope.ts';

/** Keys of a scope; 'all'; or undefined when the scope is not requested. */
export type WantedKeys = 'all' | string[] | undefined;

export interface WantedAttributes {
  client: WantedKeys;
  shared: WantedKeys;
}

/** The attributes that exist, as JSON members: `"key":value`. */
interface FoundAttributes {
  client: string[];
  shared: string[];
}

/** Parses keys separated by commas. */
export function keysOfText(text: string): WantedKeys {
  return text === '' ? undefined : namedKeys(text.split(','));
}

/** Leaves out empty names and names with NUL: no key has such a name, and PostgreSQL stores no NUL. */
export function namedKeys(names: string[]): string[] {
  const keys = names.filter((name) => name !== '');
  if (keys.length > limits.listedKeysMax) {
    throw badRequest('keys', `At most ${limits.listedKeysMax} keys can be asked for at once.`);
  }
  return keys.filter((key) => !key.includes('\0'));
}

/** Returns the requested scopes. A request without keys is for all attributes. */
export function wantedScopes(client: WantedKeys, shared: WantedKeys): WantedAttributes {
  return client === undefined && shared === undefined ? { client: 'all', shared: 'all' } : { client, shared };
}

/** Returns the scopes and keys to read; `keys` null = all keys. */
export function scopesAndKeys({ client, shared }: WantedAttributes): { scopes: Scope[]; keys: string[] | null } {
  const scopes: Scope[] = [];
  if (client !== undefined) scopes.push('CLIENT_SCOPE');
  if (shared !== undefined) scopes.push('SHARED_SCOPE');
  const isAll = client === 'all' || shared === 'all';
  return { scopes, keys: isAll ? null : [...new Set([...(client ?? []), ...(shared ?? [])])] };
}

/** Reads the request from a document like `{"clientKeys":"a,b","sharedKeys":["c"]}` or `{"allClientKeys":true}`. */
export function wantedOf(document: Json): WantedAttributes {
  if (!(document instanceof Map)) {
    throw badRequest('attribute_request', 'A request for attributes must be a JSON object; {} asks for all of them.');
  }
  const keys = (list: string, all: string) =>
    document.get(all) === true ? 'all' : listedKeys(list, document.get(list) ?? '');
  return wantedScopes(keys('clientKeys', 'allClientKeys'), keys('sharedKeys', 'allSharedKeys'));
}

function listedKeys(member: string, given: Json): WantedKeys {
  if (typeof given === 'string') return keysOfText(given);
  if (Array.isArray(given) && given.every((name) => typeof name === 'string')) {
    return given.length === 0 ? undefined : namedKeys(given);
  }
  throw badRequest('attribute_request', `Member "${member}" must be a string like "a,b" or an array of strings.`);
}

export async function readWanted(
  attributes: Pick<Attributes, 'readFor'>,
  device: { readonly number: number; readonly tenantId: string },
  wanted: WantedAttributes,
): Promise<FoundAttributes> {
  const found: FoundAttributes = { client: [], shared: [] };
  const { client, shared } = wanted;
  const { scopes, keys } = scopesAndKeys(wanted);
  if (keys?.length === 0) return found;
  const clientKeys = new Set(client);
  const sharedKeys = new Set(shared);
  const write = async (rows: ScopedRow[]): Promise<void> => {
    let chars = 0;
    for (const { scope, key, value } of rows) {
      const isClient = scope === 'CLIENT_SCOPE';
      const isAsked = isClient ? client === 'all' || clientKeys.has(key) : shared === 'all' || sharedKeys.has(key);
      if (!isAsked) continue;
      const member = `${JSON.stringify(key)}:${strictForm(value)}`;
      found[isClient ? 'client' : 'shared'].push(member);
      chars += member.length;
      if (chars < limits.attributeTurnChars) continue;
      // Lets the event loop run in between: a control character becomes six.
      chars = 0;
      await nextTurn();
    }
  };
  await attributes.readFor(device, device.number, scopes, keys, write);
  return found;
}

/** Returns `{"client":{…},"shared":{…}}` without the empty scopes. */
export function foundJson({ client, shared }: FoundAttributes, alwaysClient = false): string {
  const members: string[] = [];
  if (client.length > 0 || alwaysClient) members.push(`"client":{${client.join(',')}}`);
  if (shared.length > 0) members.push(`"shared":{${shared.join(',')}}`);
  return `{${members.join(',')}}`;
}
