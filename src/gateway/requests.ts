/**
 * Decodes a gateway's messages about one device, and makes the answer to a request for attributes
 * (docs/mqtt.md#gateways).
 */
import { namedKeys, type WantedAttributes, type WantedKeys, wantedScopes } from '../attributes/request.ts';
import type { Scope } from '../attributes/scope.ts';
import type { AttributeRow } from '../attributes/store.ts';
import { badRequest } from '../base/errors.ts';
import { checkDeviceName } from '../device/model/device.ts';
import { replyId } from '../rpc/rpc.ts';
import { readMembers, textOfMember } from '../value/by-name.ts';
import { type Json, JsonNumber } from '../value/json.ts';
import { strictForm } from '../value/typed.ts';
import type { WantedChild } from './names.ts';

/** Decodes `{"device":"A","type":"t"}`. */
export function readChildConnect(body: Uint8Array): WantedChild {
  const members = readMembers(body);
  const type = members.get('type') ?? '';
  if (typeof type !== 'string') throw badRequest('gateway_type', 'Member "type" must be the name of a profile.');
  return { name: deviceOf(members), type };
}

/** Decodes `{"device":"A"}`. */
export function readDisconnect(body: Uint8Array): string {
  return deviceOf(readMembers(body));
}

interface RpcReply {
  device: string;
  id: number;
  /** The JSON as the gateway sent it. */
  data: string;
}

/** Decodes `{"device":"A","id":1,"data":…}`. */
export function readReply(body: Uint8Array): RpcReply {
  const members = readMembers(body, 'data');
  const device = deviceOf(members);
  const id = replyId(idOf(members));
  if (id === undefined) throw badRequest('gateway_id', 'Member "id" must be a whole number of 32 bits.');
  const data = textOfMember(body, 'data');
  if (data === undefined) throw badRequest('gateway_data', 'Member "data" is missing: the reply of the device.');
  return { device, id, data };
}

interface AttributeRequest {
  /** The id as the gateway wrote it. */
  id: string;
  device: string;
  wanted: WantedAttributes;
  /** `one`: the older form, for one scope. `both`: the form with a list for each scope. */
  form: 'one' | 'both';
  /** The key of a request that names exactly one. */
  onlyKey: string | undefined;
}

/**
 * Decodes `{"id":1,"device":"A","client":true,"key":"k"}`, the same with `"keys":["k","l"]` (empty = all of the scope),
 * or `{"id":1,"device":"A","client":["k"],"shared":["s"]}` (without both lists = all of both scopes).
 */
export function readAttributeRequest(body: Uint8Array): AttributeRequest {
  const members = readMembers(body);
  const device = deviceOf(members);
  const id = idOf(members);
  const client = members.get('client');
  const isOneScope = typeof client === 'boolean' || members.has('key') || members.has('keys');
  if (!isOneScope) {
    const wanted = wantedScopes(keyList(client, 'client'), keyList(members.get('shared'), 'shared'));
    return { id, device, wanted, form: 'both', onlyKey: undefined };
  }
  if (typeof client !== 'boolean') {
    throw badRequest('gateway_scope', 'Member "client" must be true (client attributes) or false (shared attributes).');
  }
  const key = members.get('key');
  if (key !== undefined && typeof key !== 'string') throw badRequest('gateway_key', 'Member "key" must be a string.');
  const keys: WantedKeys = key === undefined ? keyList(members.get('keys'), 'keys') : namedKeys([key]);
  if (keys === undefined) throw badRequest('gateway_keys', 'Member "key" or "keys" is missing; "keys":[] is all keys.');
  const onlyKey = keys !== 'all' && keys.length === 1 ? keys[0] : undefined;
  const wanted = client ? { client: keys, shared: undefined } : { client: undefined, shared: keys };
  return { id, device, wanted, form: 'one', onlyKey };
}

type FoundRow = AttributeRow & { scope: Scope };

/** `rows`: attributes of the requested scopes; keys that were not requested are left out. */
export function attributeAnswer({ id, device, wanted, form, onlyKey }: AttributeRequest, rows: FoundRow[]): string {
  const client = new Map<string, string>();
  const shared = new Map<string, string>();
  for (const { scope, key, value } of rows) {
    if (scope === 'CLIENT_SCOPE' && isWanted(wanted.client, key)) client.set(key, strictForm(value));
    if (scope === 'SHARED_SCOPE' && isWanted(wanted.shared, key)) shared.set(key, strictForm(value));
  }
  const values = new Map([...client, ...shared]);
  let text = `{"id":${id},"device":${JSON.stringify(device)}`;
  if (form === 'both') {
    if (client.size > 0) text += `,"client":${objectText(client)}`;
    if (shared.size > 0) text += `,"shared":${objectText(shared)}`;
    if (values.size > 0) text += `,"values":${objectText(values)}`;
  } else if (onlyKey !== undefined) {
    const value = values.get(onlyKey);
    if (value !== undefined) text += `,"value":${value}`;
  } else if (values.size > 0 || wanted.client === 'all' || wanted.shared === 'all') {
    text += `,"values":${objectText(values)}`;
  }
  return `${text}}`;
}

function isWanted(keys: WantedKeys, key: string): boolean {
  return keys === 'all' || (keys?.includes(key) ?? false);
}

function objectText(members: Map<string, string>): string {
  return `{${[...members].map(([key, value]) => `${JSON.stringify(key)}:${value}`).join(',')}}`;
}

function keyList(given: Json | undefined, member: string): WantedKeys {
  if (given === undefined) return undefined;
  if (Array.isArray(given) && given.every((key) => typeof key === 'string')) {
    return given.length === 0 ? 'all' : namedKeys(given);
  }
  throw badRequest('gateway_keys', `Member "${member}" must be an array of keys.`);
}

/** Returns the name of the device. A number becomes its string. */
function deviceOf(members: Map<string, Json>): string {
  const device = members.get('device');
  const name = device instanceof JsonNumber ? device.literal : device;
  if (typeof name !== 'string') throw badRequest('gateway_device', 'Member "device" must be the name of a device.');
  checkDeviceName(name);
  return name;
}

/** Returns a whole number as a string. */
function idOf(members: Map<string, Json>): string {
  const id = members.get('id');
  if (!(id instanceof JsonNumber) || !/^-?\d+$/.test(id.literal)) {
    throw badRequest('gateway_id', 'Member "id" must be a whole number.');
  }
  return id.literal;
}
