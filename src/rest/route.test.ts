import { expect, it } from 'vitest';
import type { Session } from '../auth/auth.ts';
import type { HttpRequest } from '../uws/server.ts';
import { type Callers, empty, route } from './route.ts';

it('a call takes its turn after its caller is known and admitted, unless the route waits for a device', async () => {
  const steps: string[] = [];
  const principal = { userId: 'u', tenantId: 't', customerId: null, authority: 'TENANT_ADMIN' };
  const callers = {
    session: async () => {
      steps.push('session');
      return { principal } as unknown as Session;
    },
    admit: () => void steps.push('admit'),
    inTurn: <T>(_: unknown, call: () => Promise<T>) => {
      steps.push('turn');
      return call();
    },
  } satisfies Callers;
  const handle = async () => {
    steps.push('handle');
    return empty;
  };
  const request = { identify: () => {}, params: [], query: '', body: Buffer.alloc(0), header: () => '' };
  const f = async (waits: boolean) => {
    steps.length = 0;
    const row = route({ method: 'GET', pattern: '/api/x', summary: 'x', roles: ['TENANT_ADMIN'], waits, handle });
    await row.run(request as unknown as HttpRequest, callers);
    return steps.join(' ');
  };
  expect(await f(false)).toBe('session admit turn handle');
  expect(await f(true)).toBe('session admit handle');
});
