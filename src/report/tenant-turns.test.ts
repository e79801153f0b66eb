import { expect, test } from 'vitest';
import { badRequest } from '../base/errors.ts';
import { TenantTurns } from './tenant-turns.ts';

const never = new AbortController().signal;
const refusal = () => badRequest('report_range', 'refused');

function open(max: number) {
  const turns = new TenantTurns({ max, waitingMax: 10, full: refusal, displaced: refusal });
  const went: string[] = [];
  const take = (name: string, tenant: string, ended = never) =>
    turns.take({ tenant, caller: '' }, ended).then(
      () => void went.push(name),
      () => void went.push(`${name} left`),
    );
  /** Ends work of the tenant, and returns the work that begins then. */
  const next = async (tenant: string) => {
    went.length = 0;
    turns.release({ tenant, caller: '' });
    await Promise.resolve();
    return [...went];
  };
  return { turns, went, take, next };
}

test('a tenant that has several places waits for one turn of another tenant, not for all that waits', async () => {
  const { went, take, next } = open(2);
  for (let n = 0; n < 6; n += 1) void take(`a${n}`, 'a');
  for (let n = 0; n < 3; n += 1) void take(`b${n}`, 'b');
  await Promise.resolve();
  expect(went).toEqual(['a0', 'a1', 'b0']);
  // Three run, one of them in the reserved place.
  expect(await next('a')).toEqual([]);
  expect(await next('a')).toEqual(['a2']);
  // Tenant `a` had no more work, and now gets its reserved place.
  expect(await next('a')).toEqual(['b1', 'a3']);
  expect(await next('b')).toEqual([]);
  expect(await next('b')).toEqual(['b2']);
});

test('work that leaves takes no place', async () => {
  const { turns, went, take, next } = open(1);
  const gone = new AbortController();
  void take('a0', 'a');
  void take('a1', 'a', gone.signal);
  void take('a2', 'a');
  gone.abort();
  await Promise.resolve();
  expect(went).toEqual(['a0', 'a1 left']);
  expect(await next('a')).toEqual(['a2']);
  expect([turns.held, turns.waiting]).toEqual([1, 0]);
});
