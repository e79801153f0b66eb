/** Relations over the REST API: calls at the same moment. */
import { expect, it } from 'vitest';
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
