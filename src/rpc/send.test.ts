/**
 * Commands between two workers over the process bus: deliveries that fail, order, the bus disconnected, retries of
 * persistent ones.
 */
import { afterEach, beforeEach, expect, test, vi } from 'vitest';
import { steadySleep, useSteadyClock } from '../../test/harness/steady-clock.ts';
import { systemClock as clock } from '../base/clock.ts';
import { limits } from '../base/limits.ts';
import { createLog } from '../base/log.ts';
import { Metrics } from '../base/metrics/metrics.ts';
import { busCounters } from '../bus/bus.ts';
import { IpcBus } from '../bus/ipc.ts';
import { BusHub } from '../bus/ipc-primary.ts';
import { portPair } from '../bus/port.ts';
import { openChannels } from '../downlink/device-channels.ts';
import { Downlink } from '../downlink/downlink.ts';
import type { Queries } from '../postgres/client.ts';
import { RpcNumbers } from './numbers.ts';
import { PersistentRpcs } from './persistent.ts';
import type { RpcRequest } from './rpc.ts';
import { Rpc } from './send.ts';
import { type ConfirmRpc, RpcSessions } from './sessions.ts';

const log = createLog('error', 'test');
const device = 7;
const replying = { number: device, tenantId: 't' };
const owners = { device, tenantId: 't', customerId: null, callerCustomerId: null };

/** Counts numbers and remembers statuses; any other statement finds nothing. */
class Rows implements Queries {
  next = 0;
  /** Replies that are being stored, and the most at once. */
  storing = 0;
  storedAtOnce = 0;
  readonly statuses: string[] = [];
  response: unknown;
  /** Persistent commands were deleted. */
  deleted = false;
  /** The milliseconds of a read that checks whether a command still exists. */
  askMs = 0;
  /** The older commands of the device that wait at other owners. */
  older: number[] = [];
  /** True: a reply belongs to a stored command. */
  isStored = false;

  async query<Row>(text: string, values: unknown[] = []): Promise<Row[]> {
    if (this.askMs > 0 && text.includes('as lasts,')) await steadySleep(this.askMs);
    if (text.startsWith("update rpc set status = 'SUCCESSFUL'")) {
      this.storing += 1;
      this.storedAtOnce = Math.max(this.storedAtOnce, this.storing);
      await steadySleep(1);
      this.storing -= 1;
    }
    return this.#rows(text, values) as Row[];
  }

  #rows(text: string, values: unknown[]): unknown[] {
    if (text.includes('rpc_sequence')) {
      const [[count]] = [values[1] as [number]];
      this.next += count;
      return [{ device, next: this.next }];
    }
    if (text.startsWith('update rpc set status = $2')) {
      this.statuses.push(values[1] as string);
      this.response = values[4];
      return [1];
    }
    if (text.startsWith("update rpc set status = 'SUCCESSFUL'")) return this.isStored ? [1] : [];
    if (text.includes('as lasts,')) return this.deleted ? [] : [{ lasts: true, older: this.older }];
    return text.startsWith('insert into rpc (') ? [1] : [];
  }
}

interface Worker {
  bus: IpcBus;
  downlink: Downlink;
  rpc: Rpc;
  sessions: RpcSessions;
  persistent: PersistentRpcs;
}

let hub: BusHub;
let rows: Rows;
let here: Worker;
let there: Worker;

async function open(): Promise<Worker> {
  const [ours, theirs] = portPair();
  hub.attach(theirs);
  const bus = new IpcBus(ours, busCounters(new Metrics()));
  const metrics = new Metrics();
  const downlink = new Downlink({ bus, channels: openChannels(bus), log, metrics });
  await downlink.start();
  const numbers = new RpcNumbers(rows);
  const rpc = new Rpc({ postgres: rows, downlink, bus, numbers, clock, log, metrics });
  const parts = {
    postgres: rows,
    rpc,
    numbers,
    downlink,
    clock,
    log,
    retriesMax: 5,
    keptDays: 0,
    expiryTime: async () => undefined,
  };
  return { bus, downlink, rpc, sessions: new RpcSessions(downlink), persistent: new PersistentRpcs(parts) };
}

useSteadyClock();

beforeEach(async () => {
  hub = new BusHub(new Metrics());
  rows = new Rows();
  [here, there] = await Promise.all([open(), open()]);
});

afterEach(async () => {
  for (const { rpc, downlink, bus } of [here, there]) {
    rpc.close();
    downlink.stop();
    await bus.close();
  }
});

function call(worker: Worker, method: string, oneway = false, waitMs = 3_000) {
  return worker.rpc.call({ ...owners, method, params: '1.0', oneway, expirationTime: clock.now() + waitMs });
}

/**
 * A session that accepts every command. The test decides the outcome of each delivery, unless each is `confirmed`
 * immediately.
 */
function listen(worker: Worker, { confirmed = false } = {}) {
  const taken: { request: RpcRequest; confirm: ConfirmRpc }[] = [];
  const leave = worker.sessions.listen(device, {
    deliver: (request, confirm) => {
      taken.push({ request, confirm });
      if (confirmed) confirm(true);
      return true;
    },
    close: () => {},
  });
  return { taken, leave };
}

/** Listens, and waits until commands of other workers reach the session. */
async function listenInForce(worker: Worker) {
  const session = listen(worker);
  await worker.downlink.inForce(device);
  return session;
}

/** Waits until the session has received `count` commands. */
async function takes({ taken }: ReturnType<typeof listen>, count: number): Promise<void> {
  await vi.waitFor(() => expect(taken).toHaveLength(count), 10_000);
}

/** Waits until the rows have had these statuses. */
async function hasStatuses(statuses: string[]): Promise<void> {
  await vi.waitFor(() => expect(rows.statuses).toEqual(statuses), 10_000);
}

test('a command that its session could not deliver is offered to the next one, with the same id', async () => {
  const first = await listenInForce(there);
  const calling = call(here, 'again');
  await takes(first, 1);
  first.leave();
  const second = listen(there);
  first.taken[0]!.confirm(false);
  await takes(second, 1);
  expect(second.taken.map(({ request }) => request)).toEqual([first.taken[0]!.request]);
  await there.rpc.reply(replying, 1, '"ok"');
  expect(await calling).toEqual({ kind: 'replied', text: '"ok"' });
});

test.each([
  ['one-way command', () => call(here, 'm', true)],
  ['persistent command', () => persist(here)],
])('a %s whose delivery fails before its owner receives the answer is offered again', async (_, send) => {
  let deliveries = 0;
  there.sessions.listen(device, {
    deliver: (_request, confirm) => {
      deliveries += 1;
      confirm(deliveries > 1);
      return true;
    },
    close: () => {},
  });
  await send();
  await vi.waitFor(() => expect(deliveries).toBe(2), 10_000);
  await here.persistent.stop();
});

test('a command that a session took and did not confirm is not unreachable: the device may have executed it', async () => {
  const session = listen(there);
  const calling = call(here, 'a', false, 600);
  await takes(session, 1);
  session.leave();
  session.taken[0]!.confirm(false);
  expect(await calling).toEqual({ kind: 'unanswered' });
});

test('no session takes it: unreachable at its time; taken and silent: unanswered; one-way: delivered', async () => {
  const begin = performance.now();
  expect(await call(here, 'a', false, 300)).toEqual({ kind: 'unreachable' });
  expect(performance.now() - begin).toBeLessThan(5_000);
  listen(there, { confirmed: true });
  expect(await call(here, 'b', false, 300)).toEqual({ kind: 'unanswered' });
  expect(await call(here, 'c', true, 300)).toEqual({ kind: 'delivered' });
});

test('a command whose listener answered too late is offered again', async () => {
  const session = listen(there, { confirmed: true });
  await steadySleep(200);
  // The worker of the listener is paused: its answers do not reach the bus in time.
  const publish = vi.spyOn(there.bus, 'publish').mockImplementation(() => {});
  const calling = call(here, 'again', true, 10_000);
  await vi.waitFor(() => expect(publish).toHaveBeenCalled(), 20_000);
  await steadySleep(limits.offerWaitMs + 100);
  publish.mockRestore();
  expect(await calling).toEqual({ kind: 'delivered' });
  expect(session.taken).toHaveLength(1);
});

test('a worker that answers an offer after its end gets the command at once, not at the next repetition', async () => {
  const session = listen(there, { confirmed: true });
  await steadySleep(200);
  const held: Parameters<typeof there.bus.publish>[] = [];
  const publish = vi.spyOn(there.bus, 'publish').mockImplementation((...message) => void held.push(message));
  const calling = call(here, 'late', true, 10_000);
  await vi.waitFor(() => expect(publish).toHaveBeenCalled(), 20_000);
  await steadySleep(limits.offerWaitMs + 100);
  publish.mockRestore();
  const begin = performance.now();
  for (const message of held) there.bus.publish(...message);
  expect(await calling).toEqual({ kind: 'delivered' });
  expect(performance.now() - begin).toBeLessThan(limits.rpcRepeatMsMin / 2 - 200);
  expect(session.taken).toHaveLength(1);
});

test('a worker that always needs longer than the wait of an offer gets the command', async () => {
  const session = listen(there, { confirmed: true });
  await steadySleep(200);
  const publish = there.bus.publish.bind(there.bus);
  vi.spyOn(there.bus, 'publish').mockImplementation((...message) => {
    setTimeout(() => publish(...message), 2 * limits.offerWaitMs);
  });
  expect(await call(here, 'slow', true, 10_000)).toEqual({ kind: 'delivered' });
  expect(session.taken).toHaveLength(1);
});

test('commands of two owners reach a session that opens later in the order of their ids', async () => {
  const callings = [];
  for (let n = 0; n < 6; n += 1) {
    callings.push(call(n % 2 ? there : here, `m${n}`, true));
    await steadySleep(80);
  }
  const session = listen(there, { confirmed: true });
  await Promise.all(callings);
  expect(session.taken.map(({ request }) => request.id)).toEqual([1, 2, 3, 4, 5, 6]);
});

test('commands of two owners wait long for a session, and reach it in the order of their ids', async () => {
  const callings = [];
  for (let n = 0; n < 4; n += 1) {
    callings.push(call(n % 2 ? there : here, `m${n}`, true, 20_000));
    await steadySleep(80);
  }
  // Meanwhile the owner of the younger commands offers them before the older ones.
  await steadySleep(limits.rpcElderWaitMs + limits.offerWaitMs + 200);
  const session = listen(there, { confirmed: true });
  await Promise.all(callings);
  expect(session.taken.map(({ request }) => request.id)).toEqual([1, 2, 3, 4]);
});

test('a session that opens while a younger command is offered before an older one gets the older one first', async () => {
  const older = call(here, 'older', true, 20_000);
  await steadySleep(80);
  const offer = vi.spyOn(there.downlink, 'offer');
  const younger = call(there, 'younger', true, 20_000);
  // The second offer begins when the younger command has waited for the older one in vain.
  await vi.waitFor(() => expect(offer).toHaveBeenCalledTimes(2), 10_000);
  const session = listen(there, { confirmed: true });
  await Promise.all([older, younger]);
  expect(session.taken.map(({ request }) => request.method)).toEqual(['older', 'younger']);
}, 20_000);

test('owners of many commands announce each command to each other a few times only', async () => {
  const sent = [here, there].map(({ downlink }) => vi.spyOn(downlink, 'send'));
  const callings = [];
  for (let n = 0; n < 60; n += 1) callings.push(call(n % 2 ? there : here, `m${n}`, true, 20_000));
  await steadySleep(200);
  expect(sent.reduce((sum, { mock }) => sum + mock.calls.length, 0)).toBeLessThan(60 * 5);
  listen(there, { confirmed: true });
  await Promise.all(callings);
}, 20_000);

test('a device whose owner died does not block the commands of another for long', async () => {
  void call(here, 'old', true).catch(() => {});
  await steadySleep(80);
  const calling = call(there, 'young', true);
  await steadySleep(300);
  await here.bus.close();
  listen(there, { confirmed: true });
  const begin = performance.now();
  expect(await calling).toEqual({ kind: 'delivered' });
  expect(performance.now() - begin).toBeLessThan(5_000);
});

test('without the bus a command is refused with its name, and so is a reply that is not for this worker', async () => {
  await here.bus.close();
  await expect(call(here, 'm')).rejects.toMatchObject({ status: 503, reason: 'bus_away' });
  await expect(here.rpc.reply(replying, 5, '1')).rejects.toMatchObject({ status: 503, reason: 'bus_away' });
});

test.each([
  ['its deadline is far', 3_000],
  ['its deadline is before the wait for the answer ends', 250],
])('a command that a session took without saying so ends as doubtful when %s', async (_, waitMs) => {
  let publish: { mockRestore(): void } | undefined;
  const given: number[] = [];
  there.sessions.listen(device, {
    deliver: ({ id }) => {
      given.push(id);
      // The answer to the grant is lost.
      publish = vi.spyOn(there.bus, 'publish').mockImplementation(() => {});
      return true;
    },
    close() {},
  });
  await there.downlink.inForce(device);
  await expect(call(here, 'open valve', false, waitMs)).rejects.toMatchObject({
    status: 504,
    reason: 'rpc_doubtful',
    retryAfterSeconds: 0,
    message: expect.stringContaining('may have executed the command'),
  });
  expect(given).toHaveLength(1);
  publish?.mockRestore();
});

/** A session that takes each command; the answer of its worker to the first grant is lost. */
async function listenWithLostAnswer(worker: Worker) {
  const given: RpcRequest[] = [];
  const publish = vi.spyOn(worker.bus, 'publish');
  worker.sessions.listen(device, {
    deliver: (request, confirm) => {
      given.push(request);
      if (given.length === 1) publish.mockImplementationOnce(() => {});
      else confirm(true);
      return true;
    },
    close() {},
  });
  // The announcement of the session lets owners offer again.
  await steadySleep(100);
  return given;
}

test('a persistent command whose offer ended as doubtful is offered again', async () => {
  const given = await listenWithLostAnswer(there);
  await persist(here);
  await hasStatuses(['SENT', 'DELIVERED']);
  expect(given.map(({ id }) => id)).toEqual([1, 1]);
  await here.persistent.stop();
});

test('a persistent command that is confirmed after its offer ended as doubtful is not delivered again', async () => {
  const given = await listenWithLostAnswer(there);
  await persist(here);
  await steadySleep(2 * limits.offerWaitMs + 200);
  there.downlink.send(device, 'rpc-climb', { kind: 'confirm', id: 1, delivered: true });
  await hasStatuses(['SENT', 'DELIVERED']);
  await steadySleep(1.25 * limits.rpcRepeatMsMin);
  expect(given.map(({ id }) => id)).toEqual([1]);
  await here.persistent.stop();
});

test('a command that ends as doubtful does not end the other commands of the device', async () => {
  const given = await listenWithLostAnswer(there);
  const callings = [call(here, 'first', true), call(here, 'second', true)];
  const [first, second] = await Promise.allSettled(callings);
  expect(first).toMatchObject({ status: 'rejected', reason: { reason: 'rpc_doubtful' } });
  expect(second).toEqual({ status: 'fulfilled', value: { kind: 'delivered' } });
  expect(given.map(({ id }) => id)).toEqual([1, 2]);
});

test('a command that gets its number after the end of this worker began is refused', async () => {
  const calling = call(here, 'late');
  here.rpc.close();
  await expect(calling).rejects.toMatchObject({ status: 503, reason: 'draining' });
  expect(here.rpc.waiting).toBe(0);
});

test('a command that the device may have executed when its worker stops is not to be sent again', async () => {
  const session = await listenInForce(there);
  const calling = call(here, 'open valve');
  await takes(session, 1);
  here.rpc.close();
  const message = expect.stringContaining('may have executed the command: this server stops');
  await expect(calling).rejects.toMatchObject({ status: 504, reason: 'rpc_doubtful', message });
});

test('without the bus a session of the same worker is still served', async () => {
  await here.bus.close();
  const session = listen(here);
  const calling = call(here, 'm');
  await takes(session, 1);
  await here.rpc.reply(replying, session.taken[0]!.request.id, '2');
  expect(await calling).toEqual({ kind: 'replied', text: '2' });
});

test('a persistent command whose offer found the bus away is offered again without the notice of a gap', async () => {
  listen(there, { confirmed: true });
  await steadySleep(200);
  const connected = vi.spyOn(here.bus, 'connected', 'get').mockReturnValue(false);
  await persist(here);
  await vi.waitFor(() => expect(connected).toHaveBeenCalled(), 10_000);
  connected.mockRestore();
  await hasStatuses(['SENT', 'DELIVERED']);
  await here.persistent.stop();
});

test('a persistent command without a confirmation is retried, and then failed with the reason', async () => {
  const session = await listenInForce(there);
  const row = { ...owners, deviceId: 'd', retries: 1, additionalInfo: null };
  const command = { device, method: 'm', params: '1', oneway: false, expirationTime: clock.now() + 60_000 };
  await here.persistent.create({ ...command, ...row });
  for (let attempt = 0; attempt < 2; attempt += 1) {
    await takes(session, attempt + 1);
    session.taken[attempt]!.confirm(false);
  }
  await hasStatuses(['SENT', 'TIMEOUT', 'SENT', 'FAILED']);
  expect(session.taken).toHaveLength(2);
  expect(rows.response).toBe(
    '{"error":"There was a Timeout and all retry attempts have been exhausted. Retry attempts set: 1"}',
  );
  await here.persistent.stop();
});

test('a persistent command goes through the states that the session reports', async () => {
  const session = await listenInForce(there);
  const row = { ...owners, deviceId: 'd', retries: null, additionalInfo: null };
  const command = { device, method: 'm', params: '1', oneway: false, expirationTime: clock.now() + 60_000 };
  await here.persistent.create({ ...command, ...row });
  await takes(session, 1);
  session.taken[0]!.confirm(true);
  await hasStatuses(['SENT', 'DELIVERED']);
  await there.rpc.reply(replying, 1, '{"ok":1}');
  await hasStatuses(['SENT', 'DELIVERED', 'SUCCESSFUL']);
  expect(rows.response).toBe('{"ok":1}');
  await here.persistent.stop();
});

test.each([
  ['waits', false],
  ['is with a session', true],
])('a command that %s is withdrawn when its caller goes', async (_, isTaken) => {
  const session = isTaken ? listen(there) : undefined;
  const caller = new AbortController();
  const expirationTime = clock.now() + 60_000;
  const calling = here.rpc.call({ ...owners, method: 'm', params: '1', oneway: true, expirationTime }, caller.signal);
  await vi.waitFor(() => expect([here.rpc.waiting, session?.taken.length ?? 0]).toEqual([1, isTaken ? 1 : 0]), 20_000);
  caller.abort();
  expect(await calling).toEqual({ kind: 'unreachable' });
  expect(here.rpc.waiting).toBe(0);
  session?.leave();
  const late = listen(there, { confirmed: true });
  expect(await call(here, 'next', true)).toEqual({ kind: 'delivered' });
  expect([...(session?.taken ?? []), ...late.taken].filter(({ request }) => request.method === 'm')).toHaveLength(
    isTaken ? 1 : 0,
  );
});

const stored = { ...owners, deviceId: 'd', retries: null, additionalInfo: null };

function persist(worker: Worker): Promise<string> {
  const command = { device, method: 'm', params: '1', oneway: false, expirationTime: clock.now() + 60_000 };
  return worker.persistent.create({ ...command, ...stored });
}

test.each([
  ['the same worker', () => here],
  ['another worker', () => there],
])(
  'a persistent command that is deleted while it is on offer is not given to a listener that opens on %s',
  async (_, opener) => {
    await persist(here);
    await steadySleep(80);
    rows.deleted = true;
    const session = listen(opener());
    await steadySleep(300);
    expect(session.taken).toEqual([]);
    rows.deleted = false;
    await persist(there);
    await takes(session, 1);
    expect(session.taken.map(({ request }) => request.id)).toEqual([2]);
    await Promise.all([here.persistent.stop(), there.persistent.stop()]);
  },
);

test('a persistent command waits for older ones that PostgreSQL names, and goes before them at last', async () => {
  const session = await listenInForce(here);
  rows.older = [1];
  rows.next = 1;
  await persist(here);
  await steadySleep(300);
  expect(session.taken).toHaveLength(0);
  rows.older = [];
  await takes(session, 1);
  session.taken[0]!.confirm(true);

  rows.older = [1];
  const begin = clock.monotonic();
  await persist(here);
  await takes(session, 2);
  expect(clock.monotonic() - begin).toBeGreaterThan(limits.rpcElderMsMax - 100);
  session.taken[1]!.confirm(true);
  // The next command does not wait for them again.
  await persist(here);
  await vi.waitFor(() => expect(session.taken).toHaveLength(3), 500);
});

test('a persistent command is given once to a new listener, however slow the store is', async () => {
  rows.askMs = 250;
  const early = await listenInForce(there);
  await persist(here);
  await steadySleep(600);
  expect(early.taken.map(({ request }) => request.id)).toEqual([1]);
  early.leave();
  await persist(here);
  await steadySleep(80);
  const late = listen(there);
  await steadySleep(600);
  expect(late.taken.map(({ request }) => request.id)).toEqual([2]);
  await here.persistent.stop();
});

test('a one-way command is delivered when its session confirms, and offered again when delivery failed', async () => {
  const first = await listenInForce(there);
  const calling = call(here, 'm', true);
  await takes(first, 1);
  first.leave();
  first.taken[0]!.confirm(false);
  const second = listen(here);
  await takes(second, 1);
  expect(second.taken.map(({ request }) => request.id)).toEqual([1]);
  second.taken[0]!.confirm(true);
  expect(await calling).toEqual({ kind: 'delivered' });
});

test('a command that no session can ever deliver fails with the reason of the session', async () => {
  const session = await listenInForce(there);
  const calling = call(here, 'm');
  const failure = expect(calling).rejects.toMatchObject({ status: 413, message: 'too large' });
  await takes(session, 1);
  session.taken[0]!.confirm(false, 'too large');
  await failure;
  await persist(here);
  await takes(session, 2);
  session.taken[1]!.confirm(false, 'too large');
  await hasStatuses(['SENT', 'FAILED']);
  expect(rows.response).toBe('{"error":"too large"}');
  await here.persistent.stop();
});

test('a command that no listener takes is offered again after pauses that grow and then end', async () => {
  vi.useFakeTimers();
  try {
    let offers = 0;
    const silent = {
      watch: () => {},
      onOpened: () => () => {},
      inForce: async () => {},
      send: () => {},
      offer: async () => {
        offers += 1;
        return 'untaken';
      },
    } as unknown as Downlink;
    const numbers = new RpcNumbers(rows);
    const rpc = new Rpc({
      postgres: rows,
      downlink: silent,
      bus: here.bus,
      numbers,
      clock,
      log,
      metrics: new Metrics(),
    });
    const waitMs = limits.rpcWaitMsMax;
    const send = () =>
      rpc
        .call({ ...owners, method: 'm', params: '1', oneway: true, expirationTime: clock.now() + waitMs })
        .catch(() => {});
    void send();
    await vi.advanceTimersByTimeAsync(1);
    expect(offers).toBe(1);
    // 1, 2, 4, 8 and 16 s, each up to a quarter longer.
    await vi.advanceTimersByTimeAsync(60_000);
    expect(offers).toBe(6);
    await vi.advanceTimersByTimeAsync(waitMs / 2);
    expect(offers).toBe(6);
    // A new command of the device begins with the shortest wait again.
    void send();
    await vi.advanceTimersByTimeAsync(60_000);
    expect(offers).toBe(12);
    await vi.advanceTimersByTimeAsync(waitMs / 4);
    expect(offers).toBe(12);
    rpc.close();
  } finally {
    vi.useRealTimers();
  }
});

test('replies without a command take few statements and messages at once; more than may wait are refused', async () => {
  const sent = vi.spyOn(here.downlink, 'send');
  const floodMax = limits.rpcRepliesAtOnceMax + limits.rpcRepliesWaitingMax;
  const replies = Array.from({ length: floodMax }, (_, n) => here.rpc.reply(replying, 1_000 + n, '1'));
  expect(sent.mock.calls.length).toBeLessThan(limits.rpcRepliesAtOnceMax);
  const outcomes = await Promise.allSettled(replies);
  const refused = outcomes.filter(({ status }) => status === 'rejected');
  expect(refused.length).toBeGreaterThan(0);
  expect(refused[0]).toMatchObject({ reason: { status: 503, reason: 'rpc_replies' } });
  expect(rows.storedAtOnce).toBeGreaterThan(1);
  expect(rows.storedAtOnce).toBeLessThan(limits.rpcRepliesAtOnceMax);
}, 20_000);

test('without the bus the reply to a stored command is taken, because PostgreSQL keeps it', async () => {
  await here.bus.close();
  rows.isStored = true;
  await here.rpc.reply(replying, 5, '1');
});
