/** The pace of the host's poll when PostgreSQL answers late, as the workers see it. */
import { afterEach, expect, test, vi } from 'vitest';
import { systemClock as clock } from '../../base/clock.ts';
import { createLog } from '../../base/log.ts';
import type { Queries } from '../../postgres/client.ts';
import { type PollResult, SharedPoll } from '../../postgres/shared-poll.ts';
import { HostPoll } from './host-poll.ts';

afterEach(() => {
  vi.useRealTimers();
});

test.each([5, 600, 1_300])('a poll that is answered after %i ms spares the reads of the workers', async (latencyMs) => {
  vi.useFakeTimers();
  const nothing = { snapshot: '7:7:', timeline: '00000001', ended: 0, tenantLimits: 0 };
  const query = async () => {
    await new Promise((resolve) => setTimeout(resolve, latencyMs));
    return [{ ...nothing, credentials: false, heads: false, rpcs: false, rollout: false }];
  };
  let reads = 0;
  const read = async () => {
    reads += 1;
    return true;
  };
  let polled: ((result: PollResult) => void) | undefined;
  const worker = new SharedPoll({ kind: 'heads', clock, read }, (handler) => {
    polled = handler;
  });
  await worker.start();
  const host = new HostPoll({
    postgres: { query } as unknown as Queries,
    log: createLog('error', 'test'),
    onResult: (result) => polled!(result),
  });
  host.start();
  await vi.advanceTimersByTimeAsync(latencyMs + 100);
  const first = reads;
  await vi.advanceTimersByTimeAsync(30_000);
  expect(reads - first).toBe(0);
  const stopped = host.stop();
  await vi.advanceTimersByTimeAsync(latencyMs);
  await stopped;
  await worker.stop();
});
