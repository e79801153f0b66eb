/**
 * Records the running work of this process, so that a crash names the request or connection that caused it. Doors
 * record the event that is being handled and the open requests; the roof reads both at an uncaught exception. One
 * record for each process, because an exception identifies only the process. Recording costs some nanoseconds; the
 * AsyncLocalStorage of Node 20 triples the cost of every promise.
 */
import { createHash } from 'node:crypto';

/** `what` is a route or a kind of packet, `caller` is its sender. Neither contains a secret. */
export interface Work {
  what: string;
  caller: string;
}

/** A token of a path, or an object that can describe its sender. */
type Caller = string | { describe(): string };

let what = '';
let caller: Caller = '';
const open = new Set<Work>();

/**
 * Records the event that is handled until `endEvent`, in this turn. After an exception the record stays for the end of
 * the process.
 */
export function beginEvent(newWhat: string, newCaller: Caller): void {
  what = newWhat;
  caller = newCaller;
}

export function endEvent(): void {
  what = '';
}

/** Records a request that may take several turns, until `closeRequest`. */
export function openRequest(work: Work): void {
  open.add(work);
}

export function closeRequest(work: Work): void {
  open.delete(work);
}

/** Returns the event that is handled now; undefined between events. */
export function current(): Work | undefined {
  if (what === '') return undefined;
  return { what, caller: typeof caller === 'string' ? callerOfToken(caller) : caller.describe() };
}

/**
 * Returns the event that is handled now; otherwise the newest open requests, because one of them may have started the
 * failed work.
 */
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

/** Usually returns false: then no other check is needed. */
export function anyBlocked(): boolean {
  return blocked.size > 0;
}

export function isBlocked(work: Work): boolean {
  return blocked.has(workKey(work));
}

export function workKey({ what, caller }: Work): string {
  return `${what} of ${caller}`;
}
