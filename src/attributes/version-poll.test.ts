import { expect, test, vi } from 'vitest';
import { systemClock as clock } from '../base/clock.ts';
import { unavailable } from '../base/errors.ts';
import type { Log } from '../base/log.ts';
import { systemScheduler } from '../base/scheduler.ts';
import type { Queries } from '../postgres/client.ts';
import { VersionPoll } from './version-poll.ts';

test('the first answer of the store counts as if any version were new', async () => {
  vi.useFakeTimers({ toFake: ['setTimeout', 'clearTimeout'] });
  let isAway = true;
  const postgres: Queries = {
    async query<Row>(text: string): Promise<Row[]> {
      if (isAway) throw unavailable('postgres_away', 'away');
      return (text.includes('as snapshot') ? [{ snapshot: '7:7:', timeline: '1' }] : []) as Row[];
    },
  };
  const log = { warn: () => expect.unreachable() } as unknown as Log;
  const onVersion = () => expect.unreachable();
  const poll = new VersionPoll({ postgres, clock, scheduler: systemScheduler, log, onVersion });
  const onOverflow = vi.fn();
  try {
    poll.start(onOverflow);
    await vi.advanceTimersByTimeAsync(10);
    // A device that connects now reads the store as soon as it answers, which may be before the next poll.
    expect(onOverflow).not.toHaveBeenCalled();
    isAway = false;
    await vi.advanceTimersByTimeAsync(1_000);
    expect(onOverflow).toHaveBeenCalledTimes(1);
    await vi.advanceTimersByTimeAsync(3_000);
    expect(onOverflow).toHaveBeenCalledTimes(1);
  } finally {
    await poll.stop();
    vi.useRealTimers();
  }
});
