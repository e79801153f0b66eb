/**
 * What this process is working on, so that its death by a bug names the request or connection that caused it. Doors
 * note the event that is being handled, and the requests that are open; the roof reads both when an exception is not
 * caught. One for each process, because an exception knows nothing but the process. Noting costs some nanoseconds; the
 * AsyncLocalStorage of Node 20 triples the price of every promise.
 */
import { createHash } from 'node:crypto';

/** `what` is a route or a kind of packet, `caller` is who sent it. Neither holds a secret. */
export interface Work {
  what: string;
  caller: string;
}

/** A token of a path, or an object that can say who it is. */
export type Caller = string | { describe(): string };

let what = '';
let caller: Caller = '';
const open = new Set<Work>();

/** An event is handled from now until `ended`, in this turn. After an exception it stays noted: the process ends. */
export function began(newWhat: string, newCaller: Caller): void {
  what = newWhat;
  caller = newCaller;
}

export function ended(): void {
  what = '';
}

/** A request that may take several turns, until `closed`. */
export function opened(work: Work): void {
  open.add(work);
}

export function closed(work: Work): void {
  open.delete(work);
}

/** The event that is handled now; undefined between events. */
export function current(): Work | undefined {
  if (what === '') return undefined;
  return { what, caller: typeof caller === 'string' ? callerOfToken(caller) : caller.describe() };
}

/** The event that is handled now; else the newest open requests, as one of them may have left what failed later. */
export function suspects(most: number): Work[] {
  const event = current();
  if (event) return [event];
  return [...open].slice(-most).map(({ what, caller }) => ({ what, caller }));
}

/** Names a token without revealing the token. */
export function callerOfToken(token: string): string {
  return `token ${createHash('sha256').update(token).digest('hex').slice(0, 12)}`;
}

/** Work that ended two processes: refused for a while. */
let blocked: ReadonlySet<string> = new Set();

export function block(keys: readonly string[]): void {
  blocked = new Set(keys);
}

/** Nearly always false: then nothing else needs to be asked. */
export function anyBlocked(): boolean {
  return blocked.size > 0;
}

export function isBlocked(work: Work): boolean {
  return blocked.has(keyOf(work));
}

export function keyOf({ what, caller }: Work): string {
  return `${what} of ${caller}`;
}
