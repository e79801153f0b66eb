/**
 * Both ends of a command: the operator's REST calls and the device's polls and replies, as bytes on known connections.
 */
import { expect } from 'vitest';
import type { Device } from './api.ts';
import type { RawConnection, RawResponse } from './raw.ts';
import { faultIn } from './rest.ts';
import { sharedEngine } from './shared-engine.ts';
import { restOn } from './workers.ts';

interface Command {
  method?: string;
  params?: unknown;
  timeout?: number;
  [member: string]: unknown;
}

interface Received {
  id: number;
  method: string;
  params: unknown;
}

/** `kind`: 'oneway' or 'twoway'; v1 paths with `prefix` '/api/plugins/rpc'. */
export async function command(
  connection: RawConnection,
  kind: 'oneway' | 'twoway',
  device: Device,
  body: Command | string,
  prefix = '/api/rpc',
): Promise<RawResponse> {
  const token = await sharedEngine().adminToken();
  const text = typeof body === 'string' ? body : JSON.stringify(body);
  return await restOn(connection, token, { path: `${prefix}/${kind}/${device.id}`, body: text });
}

export function poll(connection: RawConnection, device: Device, query = '?timeout=15000'): Promise<RawResponse> {
  return connection.ask({ method: 'GET', path: `/api/v1/${device.token}/rpc${query}` }, 30_000);
}

export function received(response: RawResponse): Received {
  expect(response.status, response.body.toString()).toBe(200);
  expect(response.headers.get('content-type')).toBe('application/json');
  return JSON.parse(response.body.toString()) as Received;
}

export function reply(
  connection: RawConnection,
  device: Device,
  id: number | string,
  body: string | Buffer,
): Promise<RawResponse> {
  return connection.ask({ path: `/api/v1/${device.token}/rpc/${id}`, body });
}

export function answerText({ status, body }: RawResponse): string {
  return `${status} ${body.toString()}`;
}

/** Returns a refusal as `status/errorCode message`. */
export function refusal({ status, headers, body }: RawResponse): string {
  expect(headers.get('content-type')).toBe('application/json');
  return faultIn(status, body.toString());
}
