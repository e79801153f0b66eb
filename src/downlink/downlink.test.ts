import { setImmediate as turn } from 'node:timers/promises';
import { afterEach, beforeEach, describe, expect, it } from 'vitest';
import { eventually } from '../../test/harness/api.ts';
import { FragileBus } from '../../test/harness/fragile-bus.ts';
import { steadySleep, useSteadyClock } from '../../test/harness/steady-clock.ts';
import { limits } from '../base/limits.ts';
import { createLog } from '../base/log.ts';
import { Metrics } from '../base/metrics/metrics.ts';
import { busCounters } from '../bus/bus.ts';
import { IpcBus } from '../bus/ipc.ts';
import { BusHub } from '../bus/ipc-primary.ts';
import { portPair } from '../bus/port.ts';
import { openChannels } from './device-channels.ts';
import { Downlink, type Listener } from './downlink.ts';
import type { OfferOutcome } from './offer.ts';

useSteadyClock();

const log = createLog('fatal', 'test');
const device = 70;

let hub: BusHub;
let opened: Downlink[] = [];
let metrics: Metrics;

async function open(): Promise<{ downlink: Downlink; bus: FragileBus }> {
  const [ours, theirs] = portPair();
  hub.attach(theirs);
  const bus = new FragileBus(new IpcBus(ours, busCounters(new Metrics())));
  const downlink = new Downlink({ bus, channels: openChannels(bus), log, metrics });
  await downlink.start();
  opened.push(downlink);
  return { downlink, bus };
}

function ear(takes = true): Listener & { received: object[]; closed: string[] } {
  const received: object[] = [];
  const closed: string[] = [];
  return {
    received,
    closed,
    receive(message) {
      if (takes) received.push(message);
      return takes;
    },
    close: (reason) => void closed.push(reason),
  };
}

async function settled(): Promise<void> {
  for (let i = 0; i < 20; i += 1) await turn();
}

let here: Downlink;
let there: Downlink;
let hereBus: FragileBus;
let thereBus: FragileBus;

beforeEach(async () => {
  hub = new BusHub(new Metrics());
  metrics = new Metrics();
  opened = [];
  ({ downlink: here, bus: hereBus } = await open());
  ({ downlink: there, bus: thereBus } = await open());
});

afterEach(() => {
  for (const downlink of opened) downlink.stop();
});

describe('send', () => {
  it('reaches every listener on every worker once, and no other device or topic', async () => {
    const ears = [ear(), ear(), ear(), ear(), ear()];
    here.listen(device, 'attributes', ears[0]!);
    there.listen(device, 'attributes', ears[1]!);
    there.listen(device, 'attributes', ears[2]!);
    there.listen(device, 'rpc', ears[3]!);
    there.listen(device + 64, 'attributes', ears[4]!);
    await there.inForce(device);
    here.send(device, 'attributes', { value: '9223372036854775807' });
    await settled();
    const message = { value: '9223372036854775807' };
    expect(ears.map(({ received }) => received)).toEqual([[message], [message], [message], [], []]);
  });

  it('reaches no listener that has left, even during the delivery', async () => {
    const second = ear();
    let leaveSecond = () => {};
    here.listen(device, 'attributes', { receive: () => leaveSecond(), close() {} });
    leaveSecond = here.listen(device, 'attributes', second);
    here.send(device, 'attributes', {});
    here.send(device, 'attributes', {});
    expect(second.received.length).toBeLessThan(2);
    leaveSecond();
  });

  it('reaches the others when one listener throws, which is counted', async () => {
    const last = ear();
    const broken: Listener = {
      receive() {
        throw new RangeError('on purpose');
      },
      close() {},
    };
    for (const listener of [broken, last]) there.listen(device, 'attributes', listener);
    for (const listener of [broken, last]) there.listen(device, 'rpc', listener);
    await there.inForce(device);
    here.send(device, 'attributes', {});
    await settled();
    expect(last.received).toEqual([{}]);
    expect(await here.offer(device, 'rpc', { offered: true })).toBe('taken');
    expect(last.received).toEqual([{}, { offered: true }]);
    expect(metrics.counter('downlink_bugs_total', '').value).toBe(2);
  });

  it('is seen by the watchers of a worker subscribed to the shard, before the listeners', async () => {
    const seen: string[] = [];
    there.watch('attributes', (number) => seen.push(`watcher ${number}`));
    there.listen(device, 'attributes', { receive: () => seen.push('listener'), close() {} });
    await there.inForce(device);
    here.send(device, 'attributes', {});
    await settled();
    expect(seen).toEqual([`watcher ${device}`, 'listener']);
  });
});

describe('offer', () => {
  it('goes to a listener of the same worker first', async () => {
    const [near, far] = [ear(), ear()];
    here.listen(device, 'rpc', near);
    there.listen(device, 'rpc', far);
    await there.inForce(device);
    expect(await here.offer(device, 'rpc', { id: 1 })).toBe('taken');
    expect([near.received.length, far.received.length]).toEqual([1, 0]);
  });

  it('goes to exactly one of many listeners on many workers', async () => {
    const third = (await open()).downlink;
    const ears = [ear(), ear(), ear()];
    there.listen(device, 'rpc', ears[0]!);
    there.listen(device, 'rpc', ears[1]!);
    third.listen(device, 'rpc', ears[2]!);
    await Promise.all([there.inForce(device), third.inForce(device)]);
    const outcomes = await Promise.all(Array.from({ length: 20 }, (_, id) => here.offer(device, 'rpc', { id })));
    expect(new Set(outcomes)).toEqual(new Set<OfferOutcome>(['taken']));
    const received = ears.flatMap((one) => one.received.map((message) => (message as { id: number }).id));
    expect(received.sort((a, b) => a - b)).toEqual(Array.from({ length: 20 }, (_, id) => id));
  });

  it('offers to the next worker when the first one does not take it', async () => {
    const third = (await open()).downlink;
    const willing = ear();
    there.listen(device, 'rpc', ear(false));
    await there.inForce(device);
    third.listen(device, 'rpc', willing);
    await third.inForce(device);
    expect(await here.offer(device, 'rpc', {})).toBe('taken');
    expect(willing.received).toHaveLength(1);
  });

  it('returns untaken in time when no worker listens, and when none takes it', async () => {
    const started = performance.now();
    expect(await here.offer(device, 'rpc', {})).toBe('untaken');
    expect(performance.now() - started).toBeLessThan(4_000);
    there.listen(device, 'rpc', ear(false));
    await there.inForce(device);
    expect(await here.offer(device, 'rpc', {})).toBe('untaken');
  });

  it('returns away when the bus is unavailable and no session listens here, and taken when one does', async () => {
    hereBus.connected = false;
    expect(await here.offer(device, 'rpc', {})).toBe('away');
    here.listen(device, 'rpc', ear());
    expect(await here.offer(device, 'rpc', {})).toBe('taken');
  });

  it('returns doubtful when the granted worker does not answer: it may have been taken', async () => {
    const taker: Listener = {
      receive: () => {
        thereBus.connected = false;
        return true;
      },
      close() {},
    };
    there.listen(device, 'rpc', taker);
    await there.inForce(device);
    expect(await here.offer(device, 'rpc', {})).toBe('doubtful');
  });
});

describe('offer of a message that a store may withdraw', () => {
  /** Asks the store, which takes `ms`, once for each listener that may get the message. */
  const storeAfter = (ms: number, isWanted = true) => {
    const want = {
      reads: 0,
      now: () => true,
      stored: async () => {
        want.reads += 1;
        await steadySleep(ms);
        return isWanted;
      },
    };
    return want;
  };

  it('reaches no listener, here or on another worker, when the store no longer wants it', async () => {
    const [near, far] = [ear(), ear()];
    there.listen(device, 'rpc', far);
    await there.inForce(device);
    expect(await here.offer(device, 'rpc', {}, storeAfter(0, false))).toBe('untaken');
    here.listen(device, 'rpc', near);
    expect(await here.offer(device, 'rpc', {}, storeAfter(0, false))).toBe('untaken');
    expect([near.received, far.received]).toEqual([[], []]);
  });

  it('reaches no listener when its sender withdraws it while the store is read', async () => {
    const far = ear();
    there.listen(device, 'rpc', far);
    await there.inForce(device);
    const want = storeAfter(0);
    want.now = () => want.reads === 0;
    expect(await here.offer(device, 'rpc', {}, want)).toBe('untaken');
    expect(far.received).toEqual([]);
  });

  it('asks the workers again after a slow read, which is not repeated: a late grant would be refused', async () => {
    const far = ear();
    there.listen(device, 'rpc', far);
    await there.inForce(device);
    const slow = storeAfter(2 * limits.offerWaitMs);
    expect(await here.offer(device, 'rpc', {}, slow)).toBe('taken');
    expect([slow.reads, far.received.length]).toEqual([1, 1]);
  });

  it('reads the store again before the next worker is granted the message', async () => {
    const third = (await open()).downlink;
    const willing = ear();
    there.listen(device, 'rpc', ear(false));
    await there.inForce(device);
    third.listen(device, 'rpc', willing);
    await third.inForce(device);
    const want = storeAfter(0);
    expect(await here.offer(device, 'rpc', {}, want)).toBe('taken');
    expect(want.reads).toBeLessThanOrEqual(2);
    expect(willing.received).toHaveLength(1);
  });

  it('reaches a worker that answered while a listener here was offered the message and did not take it', async () => {
    const willing = ear();
    there.listen(device, 'rpc', willing);
    here.onOpened(device, 'rpc', () => {});
    await Promise.all([here.inForce(device), there.inForce(device)]);
    const outcome = here.offer(device, 'rpc', {}, storeAfter(5));
    here.listen(device, 'rpc', ear(false));
    expect(await outcome).toBe('taken');
    expect(willing.received).toHaveLength(1);
  });

  it('reaches a listener that opens here or on another worker during the offer', async () => {
    for (const [number, downlink] of [here, there].entries()) {
      const want = storeAfter(5);
      here.onOpened(number, 'rpc', () => {});
      await here.inForce(number);
      const outcome = here.offer(number, 'rpc', {}, want);
      await settled();
      const late = ear();
      downlink.listen(number, 'rpc', late);
      expect(await outcome).toBe('taken');
      expect([want.reads, late.received.length]).toEqual([1, 1]);
    }
  });
});

describe('onOpened', () => {
  it('notifies of a listener that opens here or on another worker, until it is ended', async () => {
    let count = 0;
    const end = here.onOpened(device, 'rpc', () => {
      count += 1;
    });
    await here.inForce(device);
    here.listen(device, 'rpc', ear());
    there.listen(device, 'rpc', ear());
    there.listen(device, 'attributes', ear());
    await settled();
    expect(count).toBe(2);
    end();
    there.listen(device, 'rpc', ear());
    await settled();
    expect(count).toBe(2);
  });

  it('lets no opening slip between an untaken offer and itself', async () => {
    for (let i = 0; i < 50; i += 1) {
      const number = 1000 + i;
      let tell = () => {};
      const granted = new Promise<void>((resolve) => {
        tell = resolve;
      });
      const end = here.onOpened(number, 'rpc', () => tell());
      const outcome = here.offer(number, 'rpc', {});
      for (let turns = 0; turns < i % 7; turns += 1) await turn();
      const listener = ear();
      there.listen(number, 'rpc', listener);
      // Either the offer finds the listener, or the opening of the listener is announced.
      const late = steadySleep(5_000);
      const isTaken = outcome.then(async (found) => found === 'taken' || (await late));
      expect(await Promise.race([granted.then(() => true), isTaken])).toBe(true);
      end();
    }
  });

  it('notifies again after the bus was unavailable', async () => {
    let count = 0;
    here.onOpened(device, 'rpc', () => {
      count += 1;
    });
    await here.inForce(device);
    thereBus.connected = false;
    there.listen(device, 'rpc', ear());
    await settled();
    expect(count).toBe(0);
    thereBus.restore();
    await eventually(() => count === 1);
  });
});

it('closes every session of a device on this worker with the reason', () => {
  const [first, second, other] = [ear(), ear(), ear()];
  here.listen(device, 'rpc', first);
  here.listen(device, 'attributes', second);
  here.listen(device + 1, 'rpc', other);
  here.close(device, 'device_deleted');
  expect([first.closed, second.closed, other.closed]).toEqual([['device_deleted'], ['device_deleted'], []]);
  here.closeAll('credentials_changed');
  expect(other.closed).toEqual(['credentials_changed']);
});

it('asserts its state: one start, one stop, devices by their number, each listener once', async () => {
  await expect(here.start()).rejects.toThrow('BUG: the downlink starts once');
  for (const number of [Number.NaN, -1, 0.5]) {
    expect(() => here.listen(number, 'rpc', ear())).toThrow('BUG: a device has a number');
    expect(() => here.send(number, 'rpc', {})).toThrow('BUG: a device has a number');
    await expect(here.offer(number, 'rpc', {})).rejects.toThrow('BUG: a device has a number');
    expect(() => here.onOpened(number, 'rpc', () => {})).toThrow('BUG: a device has a number');
  }
  const listener = ear();
  here.listen(device, 'rpc', listener);
  expect(() => here.listen(device, 'rpc', listener)).toThrow('BUG: an item is added once');
  const { downlink } = await open();
  opened.pop();
  downlink.stop();
  expect(() => downlink.stop()).toThrow('BUG: the downlink stops once');
  expect(() => downlink.watch('rpc', () => {})).toThrow('BUG: a stopped downlink');
  const [bus] = portPair();
  const deaf = new IpcBus(bus, busCounters(new Metrics()));
  const early = new Downlink({ bus: deaf, channels: openChannels(deaf), log, metrics });
  await expect(early.offer(device, 'rpc', {})).rejects.toThrow('BUG: the downlink is used after its start');
});
