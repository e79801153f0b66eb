/** Numbers of commands after a restore. Against PostgreSQL. */
import { afterAll, beforeAll, expect, test } from 'vitest';
import { insertDevices } from '../../test/harness/inserted-devices.ts';
import { startTestPostgres, type TestPostgres } from '../../test/harness/postgres-server.ts';
import { skipRpcNumbers, takeNumbers } from './store.ts';

let server: TestPostgres;
beforeAll(async () => {
  server = await startTestPostgres();
}, 60_000);
afterAll(() => server.stop(), 60_000);

test('numbers of every device are skipped, also of those without a command, over several statements', async () => {
  const { postgres } = server;
  const numbers = await insertDevices(postgres, 5);
  const first = numbers[0]!;
  await takeNumbers(postgres, [first], [3]);
  await skipRpcNumbers(postgres, 1000, 2);
  const ones = numbers.map(() => 1);
  const expected = numbers.map((number) => [number, number === first ? 1003 : 1000]);
  expect(await takeNumbers(postgres, numbers, ones)).toEqual(new Map(expected as [number, number][]));
});
