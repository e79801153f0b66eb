/**
 * Attributes of entities that are not devices: few, written in one call at a time, and sent to no session. `entity` is
 * the number of the entity; 0 = an entity for which nothing was stored.
 */
import type { Clock } from '../base/clock.ts';
import type { Queries } from '../postgres/client.ts';
import type { TypedValue } from '../value/typed.ts';
import { numbersOf, type ScopedRow, scoped } from './attributes.ts';
import { deleteEntityAttributes, upsertEntityAttributes } from './entity-store.ts';
import { type Scope, scopeNumber } from './scope.ts';
import { entityRows, readAttributes, readKeys } from './store.ts';
import { StoredBytes, storedBytes } from './stored-bytes.ts';

export class EntityAttributes {
  readonly #queries: Queries;
  readonly #stored: StoredBytes;

  constructor(queries: Queries, clock: Clock) {
    this.#queries = queries;
    this.#stored = new StoredBytes(clock, entityRows);
  }

  /** Runs inside the caller's transaction, which has locked the entity. */
  async save(
    queries: Queries,
    entity: number,
    scope: Scope,
    entries: Map<string, TypedValue>,
    ts: number,
  ): Promise<void> {
    await this.#stored.admit(queries, entity, scopeNumber[scope], storedBytes(entries));
    await upsertEntityAttributes(queries, entity, scopeNumber[scope], entries, ts);
  }

  async remove(entity: number, scope: Scope, keys: string[]): Promise<void> {
    await deleteEntityAttributes(this.#queries, entity, scopeNumber[scope], keys);
    this.#stored.removed(entity, scopeNumber[scope]);
  }

  /** Returns the attributes of several scopes, ordered by scope and key; `keys` null = all keys. */
  async readScopes(entity: number, wanted: readonly Scope[], keys: string[] | null): Promise<ScopedRow[]> {
    return scoped(await readAttributes(this.#queries, entity, numbersOf(wanted), keys, entityRows));
  }

  keys(entity: number, wanted: readonly Scope[]): Promise<string[]> {
    return readKeys(this.#queries, entity, numbersOf(wanted), entityRows);
  }
}
