/**
 * The address of the client behind trusted proxies: the address of a PROXY header, then of `X-Forwarded-For`. The
 * library parses a PROXY header of version 2 before any request of a connection, and keeps the last one.
 */

import type { HttpResponse as UwsResponse } from 'uWebSockets.js';
import { isIP } from 'node:net';

type IsTrusted = (address: string) => boolean;

/** Returns the address that made the request: of the PROXY header of a trusted proxy, else of the connection. */
export function requesterOf(res: UwsResponse, isTrusted: IsTrusted): string {
  const peer = peerOf(res);
  return isTrusted(peer) ? textOf(res.getProxiedRemoteAddressAsText()) || peer : peer;
}

/** The address at the other end of the connection. */
export function peerOf(res: UwsResponse): string {
  return textOf(res.getRemoteAddressAsText());
}

/** False for a PROXY header without an address. Costs 0.13 µs; the text of an address costs a microsecond. */
export function hasProxyHeader(res: UwsResponse): boolean {
  return res.getProxiedRemoteAddress().byteLength > 0;
}

function textOf(address: ArrayBuffer): string {
  return Buffer.from(address).toString('latin1');
}

/**
 * Returns the client's address. Each proxy names the address to its left, so the list is read from the right as long as
 * a trusted proxy named the address.
 */
export function clientAddress(sender: string, forwardedFor: string, isTrusted: IsTrusted): string {
  if (forwardedFor === '') return sender;
  let address = sender;
  for (const hop of forwardedFor.split(',').reverse()) {
    if (!isTrusted(address)) return address;
    const named = withoutPort(hop.trim());
    if (isIP(named) === 0) return address;
    address = named;
  }
  return address;
}

/** Some proxies add the port: `192.0.2.1:50000`, `[2001:db8::1]:50000`. */
function withoutPort(hop: string): string {
  return /^\[(.*)\](?::\d+)?$/.exec(hop)?.[1] ?? /^([\d.]+):\d+$/.exec(hop)?.[1] ?? hop;
}
