/** The answers of a start before the workers listen. */
import { expect, test } from 'vitest';
import { freePort } from '../../../test/harness/ports.ts';
import { StartingDoor } from './starting-door.ts';

test('a start that waits is live, not ready, and gives the port to the workers', async () => {
  const port = await freePort();
  const door = await StartingDoor.open('127.0.0.1', port);
  const ask = async (path: string) => {
    const response = await fetch(`http://127.0.0.1:${port}${path}`);
    return [response.status, (await response.json()) as Record<string, unknown>] as const;
  };
  expect(await ask('/livez')).toEqual([200, { status: 'live' }]);
  expect(await ask('/readyz')).toEqual([503, { status: 'starting', parts: {}, reasons: [] }]);
  door.reason = 'PostgreSQL at db:5432 does not answer';
  expect((await ask('/readyz'))[1]['reasons']).toEqual([door.reason]);
  for (const path of ['/api/v1/x/telemetry', '//', '/%']) expect(await ask(path)).toMatchObject([503, { status: 503 }]);
  const hanging = fetch(`http://127.0.0.1:${port}/livez`, {
    method: 'POST',
    body: new ReadableStream({ pull() {} }),
    duplex: 'half',
  } as RequestInit).catch(() => 'closed');
  await door.close();
  await hanging;
  const next = await StartingDoor.open('127.0.0.1', port);
  expect((await ask('/livez'))[0]).toBe(200);
  // An address that is in use does not fail the start.
  await (await StartingDoor.open('127.0.0.1', port)).close();
  await next.close();
});
