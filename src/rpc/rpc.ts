/** Commands to devices (server-side RPC): the types, and the rules that need no store and no bus. */
import { badRequest, Fault, notFound, unavailable } from '../base/errors.ts';
import { isObject } from '../base/schema.ts';
import { isText, isWhole } from '../bus/messages.ts';
import type { ReadBody } from '../value/lenient.ts';
import type { CommandOwners } from './shares.ts';

/** 31 bits: an id is repeated after 2^31 - 1 commands to the same device, long after any wait for an answer. */
export const rpcIdMax = 2 ** 31 - 1;

/** A command as a session of the device receives it. `params` is JSON, so that no number loses a digit. */
export interface RpcRequest {
  /** A number of 31 bits that counts up for each device (`numbers.ts`). */
  id: number;
  method: string;
  params: string;
  /** The sender wants a confirmation that the device has the command. A failed delivery is always reported. */
  confirm: boolean;
}

export function isRpcId(value: unknown): value is number {
  return isWhole(value) && value >= 0 && value <= rpcIdMax;
}

export function isRpcRequest(value: unknown): value is RpcRequest {
  if (!isObject(value)) return false;
  const { id, method, params, confirm } = value;
  return isRpcId(id) && isText(method) && isText(params) && typeof confirm === 'boolean';
}

/** Refuses a command to a device that was deleted meanwhile. */
export function unknownDevice(): Fault {
  return notFound("Device with requested id wasn't found!");
}

/** Refuses a command of a user whose customer has lost the device since. */
export function otherCustomer(): Fault {
  return notFound('The device is no longer one of the customer whose user sent the command.');
}

/** A command as its sender gives it. `device`: number of the device. */
export interface RpcCall extends CommandOwners {
  /** The customer of the user who sends it; null: the sender may command the devices of every customer. */
  callerCustomerId: string | null;
  method: string;
  params: string;
  oneway: boolean;
  /** Epoch milliseconds. */
  expirationTime: number;
}

/**
 * How a command with a waiting caller ended. `unreachable`: no session took the command in time. `unanswered`: a
 * session took it, and no reply came.
 */
export type RpcOutcome =
  | { kind: 'delivered' }
  | { kind: 'replied'; text: string }
  | { kind: 'unanswered' }
  | { kind: 'unreachable' };

export interface RpcTimeouts {
  timeoutMsMin: number;
  timeoutMsDefault: number;
}

/** Returns the deadline: `expirationTime` unchanged, or now plus the timeout, which has a minimum. */
export function expirationOf(
  asked: { timeoutMs: number | undefined; expirationTime: number | undefined },
  timeouts: RpcTimeouts,
  now: number,
): number {
  if (asked.expirationTime !== undefined) return asked.expirationTime;
  const timeoutMs = Math.max(timeouts.timeoutMsMin, asked.timeoutMs ?? timeouts.timeoutMsDefault);
  return Math.min(now + timeoutMs, Number.MAX_SAFE_INTEGER);
}

/** Returns a reply as JSON: a body that is not JSON becomes a string. */
export function replyText(body: Buffer, readBody: ReadBody): string {
  try {
    return readBody(body, jsonText);
  } catch (error) {
    if (!(error instanceof Fault)) throw error;
    return JSON.stringify(body.toString('utf8'));
  }
}

function jsonText(body: Uint8Array): string {
  const text = Buffer.from(body.buffer, body.byteOffset, body.length).toString('utf8');
  try {
    JSON.parse(text);
  } catch {
    throw badRequest('malformed_json', 'The reply is not valid JSON.');
  }
  return text;
}

/** Returns the id in a path; undefined when it is not a 32-bit number. */
export function replyId(text: string): number | undefined {
  if (!/^-?\d{1,10}$/.test(text)) return undefined;
  const id = Number(text);
  return id === (id | 0) ? id : undefined;
}

const unconfirmed = 'the worker of its session did not say whether the session took it';

export function mayHaveRun(cause = unconfirmed): Fault {
  return new Fault(
    'rpc_doubtful',
    `The device may have executed the command: ${cause}. Read the state of the device before you send the command again.`,
  );
}

export function busAway(): Fault {
  return unavailable(
    'bus_away',
    'Commands cannot reach other workers: the message bus (REDIS_URL) is unavailable. Try again later.',
  );
}
