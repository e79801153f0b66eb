/** Relations over the REST API: calls at the same moment. */
import { expect, it } from 'vitest';
import { eventually } from '../../test/harness/api.ts';
import { sharedApi } from '../../test/harness/api-handlers.ts';
import { limits } from '../base/limits.ts';

const { call, tokenOf, create, postgres } = await sharedApi();

it('several calls make no more relations than an entity may have', async () => {
  const jwt = await tokenOf();
  const [from, ...others] = await Promise.all(Array.from({ length: 7 }, () => create(jwt)));
  await postgres.query(
    `insert into relation (from_id, from_type, to_id, to_type, type, type_group)
     select $1, 'DEVICE', gen_random_uuid(), 'DEVICE', 'Contains', 'COMMON' from generate_series(1, $2)`,
    [from.id.id, limits.relationsOfEntityMax - 1],
  );
  const relate = (to: { id: object }) =>
    call('POST', '/api/relation', { jwt, body: { from: from.id, to: to.id, type: 'Contains' } });
  const statuses = (await Promise.all(others.map(relate))).map(({ status }) => status);
  expect(statuses.sort()).toEqual([200, 400, 400, 400, 400, 400]);
  await postgres.query('delete from relation where from_id = $1', [from.id.id]);
});

it('a delete of all relations that meets another one in a deadlock is repeated', async () => {
  const jwt = await tokenOf();
  const [from, to] = await Promise.all([create(jwt), create(jwt)]);
  for (const type of ['first', 'second']) {
    await call('POST', '/api/relation', { jwt, body: { from: from.id, to: to.id, type } });
  }
  const { entityType, id } = from.id;
  const lock = 'select 1 from relation where from_id = $1 and type = $2 for update';
  const waiting = `select 1 from pg_stat_activity where wait_event_type = 'Lock' and query like '%delete from relation%'`;
  let answer: Promise<{ status: number }> | undefined;
  // The delete has the row of the first relation and waits for the second one, then this transaction for the first one.
  await postgres.transaction(async (queries) => {
    await queries.query(lock, [id, 'second']);
    answer = call('DELETE', `/api/relations?entityId=${id}&entityType=${entityType}`, { jwt });
    await eventually(async () => (await postgres.query(waiting)).length === 1);
    await queries.query(lock, [id, 'first']);
  });
  expect((await answer)?.status).toBe(200);
  expect(await postgres.query('select from relation where from_id = $1', [id])).toEqual([]);
});
