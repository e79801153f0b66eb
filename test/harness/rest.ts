/**
 * Makes a REST call that must fail, and returns `status/errorCode message`; the error body has exactly its four
 * members.
 */
import { expect } from 'vitest';
import { sharedEngine } from './shared-engine.ts';

export async function fault(method: string, path: string, body?: unknown, token?: string): Promise<string> {
  const response = await sharedEngine().send(method, path, body, token);
  return faultOf(response);
}

export async function faultOf(response: Response): Promise<string> {
  return faultIn(response.status, await response.text());
}

/** Returns the fault in the documented error shape, as `status/errorCode message`. */
export function faultIn(status: number, text: string): string {
  expect(status, text).toBeGreaterThanOrEqual(400);
  const error = JSON.parse(text) as Record<string, unknown>;
  expect(Object.keys(error)).toEqual(['status', 'message', 'errorCode', 'timestamp']);
  expect(typeof error['timestamp']).toBe('number');
  expect(error['status']).toBe(status);
  return `${status}/${error['errorCode']} ${error['message']}`;
}
