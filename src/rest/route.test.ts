import { expect, it } from 'vitest';
import type { KnownCaller } from '../auth/request-callers.ts';
import * as Type from '../base/schema.ts';
import type { HttpRequest } from '../uws/request.ts';
import { pageQuery } from './parameters.ts';
import { type Callers, empty, json, publicRoute, route } from './route.ts';

it('a call takes its turn after its caller is known and admitted, unless the route waits for a device', async () => {
  const steps: string[] = [];
  const principal = { userId: 'u', tenantId: 't', customerId: null, authority: 'TENANT_ADMIN' };
  const callers = {
    find: async () => {
      steps.push('find');
      return { principal } as unknown as KnownCaller;
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
  expect(await f(false)).toBe('find admit turn handle');
  expect(await f(true)).toBe('find admit handle');
});

it('a call that waits for its turn has not read its body, and the parts of a route that waits take turns', async () => {
  const steps: string[] = [];
  const principal = { userId: 'u', tenantId: 't', customerId: 'c', authority: 'TENANT_ADMIN' };
  const callers = {
    find: async () => ({ principal }) as unknown as KnownCaller,
    admit: () => {},
    inTurn: async <T>(_: unknown, call: () => Promise<T>) => {
      steps.push('turn');
      return await call();
    },
  } satisfies Callers;
  const request = {
    ...{ identify: () => {}, params: [], query: '', header: () => '' },
    get body() {
      steps.push('body');
      return Buffer.from('{}');
    },
  } as unknown as HttpRequest;
  const input = { pattern: '/api/x', summary: 'x', roles: ['TENANT_ADMIN'], body: Type.Object({}) } as const;
  const waiting = route({ ...input, method: 'POST', handle: async () => empty });
  await waiting.run(request, callers);
  expect(steps.splice(0)).toEqual(['turn', 'body']);
  const part = async () => {
    steps.push('part');
    return empty;
  };
  const waits = route({ ...input, method: 'POST', waits: true, handle: ({ inTurn }) => inTurn(part) });
  await waits.run(request, callers);
  expect(steps).toEqual(['body', 'turn', 'part']);
});

it('a call that reads ClickHouse or a page of a list says so when it takes its turn', async () => {
  const principal = { userId: 'u', tenantId: 't', customerId: 'c', authority: 'TENANT_ADMIN' };
  const kinds: unknown[] = [];
  const callers = {
    find: async () => ({ principal }) as unknown as KnownCaller,
    admit: () => {},
    inTurn: <T>(_: unknown, call: () => Promise<T>, each?: readonly string[]) => {
      kinds.push(each);
      return call();
    },
  } satisfies Callers;
  const request = { identify: () => {}, params: [], query: 'pageSize=10&page=0' } as unknown as HttpRequest;
  const input = { method: 'GET', pattern: '/api/x', summary: 'x', roles: ['TENANT_ADMIN'] } as const;
  const handle = async () => empty;
  await route({ ...input, handle }).run(request, callers);
  await route({ ...input, query: pageQuery, handle }).run(request, callers);
  await route({ ...input, readsTelemetry: true, handle }).run(request, callers);
  await route({ ...input, readsTelemetry: true, readsPage: true, handle }).run(request, callers);
  expect(kinds).toEqual([[], ['page'], ['telemetry'], ['telemetry', 'page']]);
});

it('the answer to a read names its owners', async () => {
  const principal = { userId: 'u', tenantId: 't', customerId: 'c', authority: 'TENANT_ADMIN' };
  const callers = {
    find: async () => ({ principal }) as unknown as KnownCaller,
    admit: () => {},
    inTurn: <T>(_: unknown, call: () => Promise<T>) => call(),
  } satisfies Callers;
  const request = { identify: () => {}, params: [], query: '', remoteAddress: '10.0.0.7' } as unknown as HttpRequest;
  const handle = async () => json({});
  const input = { pattern: '/api/x', summary: 'x', handle } as const;
  const ownersOf = async (row: { run(request: HttpRequest, callers: Callers): Promise<{ owners?: unknown }> }) =>
    (await row.run(request, callers)).owners;
  const roles = ['TENANT_ADMIN'] as const;
  const own = [
    { name: 't', timesFree: 9 },
    { name: 'c', timesFree: 3 },
  ];
  expect(await ownersOf(route({ ...input, method: 'GET', roles }))).toEqual(own);
  expect(await ownersOf(route({ ...input, method: 'POST', roles, reads: true }))).toEqual(own);
  expect(await ownersOf(route({ ...input, method: 'POST', roles }))).toBeUndefined();
  expect(await ownersOf(publicRoute({ ...input, method: 'GET' }))).toEqual([
    { name: 'address 10.0.0.7', timesFree: 3 },
  ]);
});
