/**
 * Attributes of devices: the types, and the one object through which all doors and rooms read and write them. A write
 * is acknowledged after its commit. A change of shared attributes is then sent to the sessions of the device.
 */
import { type Fault, unavailable } from '../base/errors.ts';
import { limits } from '../base/limits.ts';
import { Turns } from '../base/turns.ts';
import type { Queries } from '../postgres/client.ts';
import { Kind, type TypedValue } from '../value/typed.ts';
import { type Scope, scopeNumber, scopes } from './scope.ts';
import { type AttributeRow, readAttributes, readAttributesWithin, readKeys } from './store.ts';
import type { AttributeWriter, WrittenBy } from './writer.ts';

export type ScopedRow = AttributeRow & { scope: Scope };

export class Attributes {
  readonly #queries: Queries;
  readonly #writer: AttributeWriter;
  /** Reads that devices ask for. */
  readonly #turns = new Turns({
    atOnceMax: limits.attributeReadsAtOnceMax,
    waitingMax: limits.attributeReadsWaitingMax,
    refusal: tooManyReads,
  });
  /** Reads of many bytes: an answer is larger still, and takes long to write. */
  readonly #largeTurns = new Turns({
    atOnceMax: limits.attributeLargeReadsAtOnceMax,
    waitingMax: limits.attributeReadsWaitingMax,
    refusal: tooManyReads,
  });

  constructor(queries: Queries, writer: AttributeWriter) {
    this.#queries = queries;
    this.#writer = writer;
  }

  /**
   * Resolves after the commit. Writes of one worker to one device and scope take effect in the order of the calls.
   * `tenantId`: whose turns and whose share of what waits are used; undefined for a caller without a tenant.
   */
  save(
    device: number,
    scope: Scope,
    entries: Map<string, TypedValue>,
    tenantId: string | undefined,
    by?: WrittenBy,
  ): Promise<void> {
    if (entries.size === 0) return Promise.resolve();
    return this.#writer.save(device, scopeNumber[scope], entries, tenantId, by);
  }

  /** Returns the keys that existed and were deleted, in the order of `keys`. */
  remove(
    device: number,
    scope: Scope,
    keys: string[],
    tenantId: string | undefined,
    by?: WrittenBy,
  ): Promise<string[]> {
    if (keys.length === 0) return Promise.resolve([]);
    return this.#writer.remove(device, scopeNumber[scope], keys, tenantId, by);
  }

  /** Returns the attributes ordered by key; `keys` null = all keys. */
  async read(device: number, scope: Scope, keys: string[] | null): Promise<AttributeRow[]> {
    return (await this.readScopes(device, [scope], keys)).map(({ scope: _, ...row }) => row);
  }

  /** Returns the attributes of several scopes, ordered by scope and key. */
  async readScopes(device: number, wanted: readonly Scope[], keys: string[] | null): Promise<ScopedRow[]> {
    return scoped(await readAttributes(this.#queries, device, numbersOf(wanted), keys));
  }

  /**
   * Calls `use` with the attributes as `readScopes` returns them, for a device or gateway that asks. Tenants, then
   * their devices, take turns, so that no device uses up the statements that may wait for PostgreSQL. Few large reads
   * run at once, from the statement to the end of `use`.
   */
  async readFor<T>(
    asker: { readonly number: number; readonly tenantId: string },
    device: number,
    wanted: readonly Scope[],
    keys: string[] | null,
    use: (rows: ScopedRow[]) => T | Promise<T>,
  ): Promise<T> {
    const caller = `device ${asker.number}`;
    const bytesMax = limits.attributeLargeReadBytesMin;
    const rows = await this.#turns.run(asker.tenantId, caller, () =>
      readAttributesWithin(this.#queries, device, numbersOf(wanted), keys, bytesMax),
    );
    if (rows) return await use(scoped(rows));
    return await this.#largeTurns.run(asker.tenantId, caller, async () => {
      return await use(await this.readScopes(device, wanted, keys));
    });
  }

  keys(device: number, wanted: readonly Scope[]): Promise<string[]> {
    return readKeys(this.#queries, device, numbersOf(wanted));
  }
}

export function numbersOf(wanted: readonly Scope[]): number[] {
  return wanted.map((scope) => scopeNumber[scope]);
}

/** Names the scopes of stored rows. */
export function scoped(rows: (AttributeRow & { scope: number })[]): ScopedRow[] {
  return rows.map((row) => ({ ...row, scope: scopes[row.scope - 1]! }));
}

function tooManyReads(): Fault {
  return unavailable('attribute_reads', 'Too many devices ask for attributes at once; ask again.');
}

/** Makes a value that the service itself writes: its type is never cast. */
export const ownValue = {
  string: (text: string): TypedValue => ({ kind: Kind.string, num: 0, int: '0', text }),
  long: (value: number): TypedValue => ({ kind: Kind.long, num: 0, int: String(value), text: '' }),
  boolean: (value: boolean): TypedValue => ({ kind: Kind.boolean, num: 0, int: value ? '1' : '0', text: '' }),
};
