/** Entity queries (docs/rest.md#entity-queries), which dashboards and SDKs of ThingsBoard send. */
import { countEntities, type FoundEntity, findQueried } from '../admin/entity-query.ts';
import { answeredValue, keyName, type ValueKey } from '../admin/key-filter.ts';
import { requireTenant, type TenantPrincipal, tenantReaders } from '../auth/roles.ts';
import * as Type from '../base/schema.ts';
import type { Shards } from '../clickhouse/shards.ts';
import type { SnapshotQueries } from '../postgres/client.ts';
import { json, type Route, route } from '../rest/route.ts';
import { closed, milliseconds, pageShape } from '../rest/shapes.ts';
import { decodeEntityQuery, decodePageQuery, entityCountQuery, entityPageQuery } from './decode-entity-query.ts';
import type { LongAnswers } from './long-answer.ts';
import { entityId, idJson } from './shapes.ts';

interface EntityQueryDeps {
  postgres: SnapshotQueries;
  shards: Shards;
  longAnswers: LongAnswers;
}

const shown = closed({ ts: milliseconds, value: Type.String() }, 'LatestValue');
const entityDataShape = closed(
  { entityId, latest: Type.Record(Type.Record(shown)), timeseries: Type.Record(Type.Unknown()) },
  'EntityData',
);

export function entityQueryRoutes({ postgres, shards, longAnswers }: EntityQueryDeps): Route[] {
  const storesOf = ({ tenantId }: TenantPrincipal) => ({ postgres, shards: shards.readsOf(tenantId) });
  return [
    route({
      method: 'POST',
      pattern: '/api/entitiesQuery/find',
      summary: 'Entities that a filter selects, with fields, attributes and latest telemetry',
      roles: tenantReaders,
      reads: true,
      readsTelemetry: true,
      readsPage: true,
      body: entityPageQuery,
      answer: pageShape(entityDataShape),
      async handle({ principal, body }) {
        const caller = requireTenant(principal);
        const query = decodePageQuery(caller, body);
        const { data, ...totals } = await findQueried(storesOf(caller), caller, query);
        return await longAnswers.json(principal, async (answer) => {
          answer.add('{"data":[');
          await answer.addAll(entityTexts(data, query.values));
          answer.add(`],${JSON.stringify(totals).slice(1)}`);
        });
      },
    }),
    route({
      method: 'POST',
      pattern: '/api/entitiesQuery/count',
      summary: 'The number of entities that a filter selects',
      roles: tenantReaders,
      reads: true,
      readsTelemetry: true,
      readsPage: true,
      body: entityCountQuery,
      answer: Type.Integer(),
      async handle({ principal, body }) {
        const caller = requireTenant(principal);
        return json(await countEntities(storesOf(caller), caller, decodeEntityQuery(caller, body)));
      },
    }),
  ];
}

function* entityTexts(found: FoundEntity[], keys: ValueKey[]): Generator<string> {
  let separator = '';
  for (const { entity, values } of found) {
    const latest: Record<string, Record<string, { ts: number; value: string }>> = {};
    for (const key of keys) {
      const value = values.get(keyName(key));
      // An entity without the value has an empty one, so that every row of a table has every column.
      (latest[key.type] ??= Object.create(null) as (typeof latest)[string])[key.key] = value
        ? { ts: value.ts, value: answeredValue(value.value) }
        : { ts: 0, value: '' };
    }
    yield `${separator}${JSON.stringify({ entityId: idJson(entity.kind, entity.id), latest, timeseries: {} })}`;
    separator = ',';
  }
}
