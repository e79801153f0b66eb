/**
 * Attributes of entities that are no devices: few, written one call at a time, and pushed to no session. `entity` is the
 * number of the entity; 0 = an entity of which nothing was stored.
 */
import type { Queries } from '../postgres/client.ts';
import type { TypedValue } from '../value/typed.ts';
import { type AttributeRow, type Scope, scopeNumber, scopes } from './attributes.ts';
import { deleteEntityAttributes, upsertEntityAttributes } from './entity-store.ts';
import { entityRows, readAttributes, readKeys } from './store.ts';

export class EntityAttributes {
  readonly #queries: Queries;

  constructor(queries: Queries) {
    this.#queries = queries;
  }

  /** Inside the caller's transaction, which holds the entity. */
  async save(
    queries: Queries,
    entity: number,
    scope: Scope,
    entries: Map<string, TypedValue>,
    ts: number,
  ): Promise<void> {
    await upsertEntityAttributes(queries, entity, scopeNumber[scope], entries, ts);
  }

  async remove(entity: number, scope: Scope, keys: string[]): Promise<void> {
    await deleteEntityAttributes(this.#queries, entity, scopeNumber[scope], keys);
  }

  /** Several scopes at once, ordered by scope and key; `keys` null = all. */
  async readScopes(
    entity: number,
    wanted: readonly Scope[],
    keys: string[] | null,
  ): Promise<(AttributeRow & { scope: Scope })[]> {
    const rows = await readAttributes(this.#queries, entity, wanted.map(numberOf), keys, entityRows);
    return rows.map((row) => ({ ...row, scope: scopes[row.scope - 1]! }));
  }

  keys(entity: number, wanted: readonly Scope[]): Promise<string[]> {
    return readKeys(this.#queries, entity, wanted.map(numberOf), entityRows);
  }
}

const numberOf = (scope: Scope): number => scopeNumber[scope];
