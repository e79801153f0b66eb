import { afterEach, beforeEach, expect, test, vi } from 'vitest';
import { limits } from '../base/limits.ts';
import { PacedRefusals } from './paced-refusals.ts';

beforeEach(() => void vi.useFakeTimers());
afterEach(() => void vi.useRealTimers());

const never = new AbortController().signal;

function open() {
  const refusals = new PacedRefusals({ now: () => Date.now(), monotonic: () => performance.now() });
  const left: string[] = [];
  const refuse = (name: string, caller: string, gone = never) =>
    void refusals.wait(caller, gone).then(() => left.push(name));
  return { left, refuse };
}

test('refusals of one caller leave one by one, and those of another caller do not wait for them', async () => {
  const { left, refuse } = open();
  for (const name of ['a0', 'a1', 'a2']) refuse(name, 'a');
  refuse('b0', 'b');
  await vi.advanceTimersByTimeAsync(0);
  expect(left).toEqual(['a0', 'b0']);
  await vi.advanceTimersByTimeAsync(limits.reportRefusalMs);
  expect(left).toEqual(['a0', 'b0', 'a1']);
  await vi.advanceTimersByTimeAsync(limits.reportRefusalMs);
  expect(left).toEqual(['a0', 'b0', 'a1', 'a2']);
});

test('no refusal waits long, and one whose client has gone ends', async () => {
  const { left, refuse } = open();
  const gone = new AbortController();
  refuse('first', 'a');
  refuse('gone', 'a', gone.signal);
  for (let n = 0; n < 100; n += 1) refuse('held', 'a');
  gone.abort();
  await vi.advanceTimersByTimeAsync(0);
  expect(left).toEqual(['first', 'gone']);
  await vi.advanceTimersByTimeAsync(limits.reportRefusalHeldMsMax);
  expect(left.length).toBe(102);
});

test('a caller with very many refusals leaves room for those of others', async () => {
  const { left, refuse } = open();
  const share = limits.reportRefusalsHeldMax / 2;
  for (let n = 0; n <= share; n += 1) refuse('a', 'a');
  await vi.advanceTimersByTimeAsync(0);
  expect(left).toEqual(['a']);
  refuse('beyond', 'a');
  for (const name of ['b0', 'b1', 'b2']) refuse(name, 'b');
  await vi.advanceTimersByTimeAsync(0);
  expect(left).toEqual(['a', 'beyond', 'b0']);
  await vi.advanceTimersByTimeAsync(limits.reportRefusalMs);
  expect(left.filter((name) => name.startsWith('b'))).toEqual(['beyond', 'b0', 'b1']);
});
