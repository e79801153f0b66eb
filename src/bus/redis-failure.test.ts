/** Why Redis cannot be reached, in words that do not change with each try. */
import { expect, test } from 'vitest';
import { redisFailureOf } from './redis-failure.ts';

const reason = (message: string) => redisFailureOf(new Error(message));

test('rounds of Sentinels with other pauses have one reason', () => {
  const rounds = [50, 1000].map((ms) => reason(`All sentinels are unreachable. Retrying from scratch after ${ms}ms.`));
  expect(rounds).toEqual(['no Sentinel names a master', 'no Sentinel names a master']);
  const last = ' Last error: Connection is closed.';
  const expected = 'no Sentinel names a master: Connection is closed';
  expect(reason(`All sentinels are unreachable. Retrying from scratch after 350ms.${last}`)).toBe(expected);
  expect(reason(`All sentinels are unreachable and retry is disabled.${last}`)).toBe(expected);
});

test('any other reason stays as it is', () => {
  expect(reason('connect ECONNREFUSED 10.0.0.40:6379')).toBe('connect ECONNREFUSED 10.0.0.40:6379');
});
