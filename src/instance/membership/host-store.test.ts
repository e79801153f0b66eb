/** The hosts that count as live. test/long/hosts.test.ts tests hosts as processes. */
import { expect, test } from 'vitest';
import { limits } from '../../base/limits.ts';
import { isLive } from './host-store.ts';

test('a host whose heartbeat is far in the past is not live, nor one far in the future', () => {
  const { hostSilentMs } = limits;
  const live = [0, hostSilentMs, -hostSilentMs].map((ageMs) => isLive({ ageMs }));
  const dead = [hostSilentMs + 1, -hostSilentMs - 1, -365 * 86_400_000].map((ageMs) => isLive({ ageMs }));
  expect({ live, dead }).toEqual({ live: [true, true, true], dead: [false, false, false] });
});
