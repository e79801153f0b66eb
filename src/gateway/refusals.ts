/**
 * Collects the refused devices of one message, which has one answer. The code of the answer is that of the refusal that
 * most justifies a retry; the sentence names the devices.
 */
import { ErrorCode, Fault, faultOrThrow } from '../base/errors.ts';
import { limits } from '../base/limits.ts';
import type { Json } from '../value/json.ts';

export class Refusals {
  readonly #faults = new Map<string, Fault>();

  add(name: string, fault: Fault): void {
    this.#faults.set(name, fault);
  }

  /** Returns what `decode` makes of each device's part of a message. A part that is refused is left out and added. */
  decodeParts<T>(parts: Iterable<[string, Json | Fault]>, decode: (json: Json) => T): [name: string, T][] {
    const decoded: [string, T][] = [];
    for (const [name, json] of parts) {
      try {
        if (json instanceof Fault) throw json;
        decoded.push([name, decode(json)]);
      } catch (error) {
        this.add(name, faultOrThrow(error));
      }
    }
    return decoded;
  }

  has(name: string): boolean {
    return this.#faults.has(name);
  }

  [Symbol.iterator](): IterableIterator<[string, Fault]> {
    return this.#faults[Symbol.iterator]();
  }

  /** Returns undefined when no child was refused. */
  fault(): Fault | undefined {
    let worst: Fault | undefined;
    const named: string[] = [];
    for (const [name, fault] of this.#faults) {
      if (worst === undefined || rank(fault) > rank(worst)) worst = fault;
      if (named.length < limits.refusedChildrenNamedMax) named.push(`${shown(name)}: ${fault.message}`);
    }
    if (worst === undefined) return undefined;
    const more = this.#faults.size - named.length;
    const message = `${named.join(' ')}${more > 0 ? ` And ${more} more devices.` : ''}`;
    return new Fault(worst.reason, message, worst.retryAfterSeconds);
  }
}

/**
 * Ranks the faults; the highest rank is the code of the answer. Faults that allow a retry come first, because a client
 * drops a message that is reported as malformed.
 */
function rank({ status, errorCode }: Fault): number {
  if (status === 429) return 3;
  if (errorCode === ErrorCode.entitiesLimit) return 2;
  return status >= 500 ? 1 : 0;
}

function shown(name: string): string {
  const cut = limits.refusedChildNameCharsMax;
  return JSON.stringify(name.length > cut ? `${name.slice(0, cut)}…` : name);
}
