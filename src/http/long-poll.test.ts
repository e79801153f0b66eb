import type { HttpResponse as UwsResponse } from 'uWebSockets.js';
import { afterEach, describe, expect, it } from 'vitest';
import { eventually } from '../../test/harness/api.ts';
import { deviceRow } from '../../test/harness/device-row.ts';
import { unavailable } from '../base/errors.ts';
import { Metrics } from '../base/metrics/metrics.ts';
import { CachedDevice } from '../device/model/cached-device.ts';
import type { TokenCache } from '../device/token-cache.ts';
import { Exchange } from '../uws/exchange.ts';
import { LongPolls } from './long-poll.ts';

const device = new CachedDevice(deviceRow(7));

let open: LongPolls[] = [];
afterEach(() => {
  for (const polls of open) polls.close();
  open = [];
});

function longPolls(heldMax = 10, found: CachedDevice | null | Error = device): LongPolls {
  const lookup = async () => {
    if (found instanceof Error) throw found;
    return found;
  };
  const tokens = { lookup } as unknown as TokenCache;
  const polls = new LongPolls({ tokens, metrics: new Metrics(), heldMax, waitMsDefault: 60_000, waitMsMax: 300_000 });
  open.push(polls);
  return polls;
}

/** One request, its status once it is answered, and its client, which may disconnect. */
function request() {
  const seen: { status: string; vanish(): void } = { status: '', vanish: () => {} };
  const res = {
    onAborted: (abort: () => void) => {
      seen.vanish = abort;
    },
    cork: (write: () => void) => write(),
    writeStatus: (status: string) => {
      seen.status = status;
    },
    writeHeader: () => {},
    end: () => {},
  };
  return { seen, exchange: new Exchange(res as unknown as UwsResponse, '', false) };
}

describe('the wait', () => {
  it('is the default when absent or 0, and cut at the most', () => {
    const polls = longPolls();
    expect(['', 'timeout=', 'timeout=0', 'other=1', 'timeout=5', 'timeout=900000'].map((q) => polls.waitMs(q))).toEqual(
      [60_000, 60_000, 60_000, 60_000, 5, 300_000],
    );
  });

  it('is refused when it is no whole number', () => {
    for (const text of ['x', '-1', '1.5', '+5', ' 5', '1e3', '9'.repeat(20)]) {
      expect(() => longPolls().waitMs(`timeout=${encodeURIComponent(text)}`), text).toThrow('timeout');
    }
  });
});

describe('a poll', () => {
  it('ends at its deadline, not before', async () => {
    const polls = longPolls();
    const startedAt = performance.now();
    const { seen, exchange } = request();
    const poll = polls.hold(exchange, 'token', device, 120)!;
    await new Promise<void>((resolve) => {
      poll.onEnd = resolve;
    });
    expect(performance.now() - startedAt).toBeGreaterThanOrEqual(120);
    expect(performance.now() - startedAt).toBeLessThan(20_000);
    expect(seen.status).toBe('408 Request Timeout');
  });

  it('waits at its deadline until it may expire, unless the server stops', async () => {
    const polls = longPolls(20);
    const held = Array.from({ length: 2 }, () => {
      const { seen, exchange } = request();
      const poll = polls.hold(exchange, 'token', device, 1)!;
      let asks = 0;
      let allow = () => {};
      poll.beforeExpiry = () => {
        asks += 1;
        return new Promise<void>((resolve) => {
          allow = resolve;
        });
      };
      return { seen, asks: () => asks, allow: () => allow() };
    });
    await eventually(() => held.every(({ asks }) => asks() === 1));
    expect(held.map(({ seen }) => seen.status)).toEqual(['', '']);
    held[0]!.allow();
    await eventually(() => held[0]!.seen.status === '408 Request Timeout');
    expect(held.map(({ asks }) => asks())).toEqual([1, 1]);
    polls.close();
    expect(held[1]!.seen.status).toBe('408 Request Timeout');
  });

  it('is answered once, and returns false to later answers', () => {
    const { seen, exchange } = request();
    const poll = longPolls().hold(exchange, 'token', device, 1_000)!;
    let ends = 0;
    poll.onEnd = () => {
      ends += 1;
    };
    expect([poll.answer({ status: 200 }), poll.answer({ status: 403 })]).toEqual([true, false]);
    expect([seen.status, ends]).toEqual(['200 OK', 1]);
  });

  it('whose client has disconnected takes no answer and frees its place', () => {
    const polls = longPolls(1);
    const { seen, exchange } = request();
    const poll = polls.hold(exchange, 'token', device, 1_000)!;
    seen.vanish();
    expect(poll.answer({ status: 200 })).toBe(false);
    expect(polls.hold(request().exchange, 'token', device, 1_000)).toBeDefined();
  });

  it('that ended before a callback was set calls it at once', () => {
    const poll = longPolls().hold(request().exchange, 'token', device, 1_000)!;
    poll.answer({ status: 200 });
    let ended = false;
    poll.onEnd = () => {
      ended = true;
    };
    expect(ended).toBe(true);
  });

  it('above the cap is 503', () => {
    const polls = longPolls(1);
    polls.hold(request().exchange, 'token', device, 1_000);
    const { seen, exchange } = request();
    expect(polls.hold(exchange, 'token', device, 1_000)).toBeUndefined();
    expect(seen.status).toBe('503 Service Unavailable');
  });

  it('of a device or tenant that holds its share is 429, and others still find a place', () => {
    const polls = longPolls(100);
    const hold = (number: number, tenantId: string) => {
      const { seen, exchange } = request();
      return polls.hold(exchange, 'token', new CachedDevice({ ...deviceRow(7), number, tenantId }), 1_000)
        ? 'held'
        : seen.status;
    };
    const heldOf = (count: number, each: (n: number) => string) =>
      Array.from({ length: count }, (_, n) => each(n)).filter((outcome) => outcome === 'held').length;
    expect(heldOf(20, () => hold(1, 'a'))).toBe(10);
    expect(hold(1, 'a')).toBe('429 Too Many Requests');
    expect(heldOf(100, (n) => hold(2 + n, 'a'))).toBe(80);
    expect(heldOf(10, (n) => hold(200 + n, 'b'))).toBe(9);
    expect(hold(300, 'c')).toBe('held');
    expect(hold(301, 'd')).toBe('503 Service Unavailable');
  });

  it('stays when its token is still valid, expires when it is not, and is 403 when the device is gone', async () => {
    for (const [found, reason, status] of [
      [device, 'credentials_changed', ''],
      [null, 'credentials_changed', '408 Request Timeout'],
      [null, 'device_deleted', '403 Forbidden'],
    ] as const) {
      const polls = longPolls(10, found);
      const { seen, exchange } = request();
      await polls.recheck(polls.hold(exchange, 'token', device, 1_000)!, reason);
      expect(seen.status).toBe(status);
    }
  });

  it('stays when its token cannot be looked up; an error that is no fault of a store is not swallowed', async () => {
    const away = longPolls(10, unavailable('postgres_away', 'The database does not answer.'));
    const { seen, exchange } = request();
    const poll = away.hold(exchange, 'token', device, 1_000)!;
    await away.recheck(poll, 'credentials_changed');
    expect(seen.status).toBe('');
    const broken = longPolls(10, new TypeError('a mistake'));
    const held = broken.hold(request().exchange, 'token', device, 1_000)!;
    await expect(broken.recheck(held, 'credentials_changed')).rejects.toThrow('a mistake');
  });
});
