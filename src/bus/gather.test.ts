import { expect, test } from 'vitest';
import { steadySleep, useSteadyClock } from '../../test/harness/steady-clock.ts';
import type { Bus, Handler } from './bus.ts';
import { Gather } from './gather.ts';
import { isText } from './messages.ts';

useSteadyClock();

/** Joins the buses of several workers; a worker that is cut neither sends nor receives. */
class Wire {
  readonly #handlers = new Map<string, Set<{ worker: WireBus; handler: Handler }>>();

  bus(): WireBus {
    return new WireBus(this);
  }

  subscribe(worker: WireBus, channel: string, handler: Handler): () => void {
    const entry = { worker, handler };
    const known = this.#handlers.get(channel) ?? new Set();
    this.#handlers.set(channel, known.add(entry));
    return () => known.delete(entry);
  }

  publish(from: WireBus, channel: string, payload: string): void {
    for (const { worker, handler } of this.#handlers.get(channel) ?? []) {
      setImmediate(() => !from.isCut && !worker.isCut && handler(Buffer.from(payload), channel));
    }
  }
}

class WireBus implements Bus {
  readonly #wire: Wire;
  readonly #callbacks: (() => void)[] = [];
  isCut = false;
  connected = true;

  constructor(wire: Wire) {
    this.#wire = wire;
  }

  publish(channel: string, payload: string): void {
    this.#wire.publish(this, channel, payload);
  }

  async subscribe(channel: string, handler: Handler): Promise<() => void> {
    return this.#wire.subscribe(this, channel, handler);
  }

  onReconnect(callback: () => void): void {
    this.#callbacks.push(callback);
  }

  reconnect(): void {
    this.isCut = false;
    for (const callback of this.#callbacks) callback();
  }

  async close(): Promise<void> {}
}

async function worker(wire: Wire, name: string) {
  const bus = wire.bus();
  const answer = (question: string) => `${name} ${question}`;
  const gather = new Gather({ bus, channel: 'q', isQuestion: isText, isAnswer: isText, answer, waitMsMax: 200 });
  await gather.start();
  return { bus, gather };
}

/** Resolves when the announcements of all workers have arrived. */
const settled = () => steadySleep(20);

test('every worker answers; one that comes later, stops, hangs or returns is known', async () => {
  const wire = new Wire();
  const a = await worker(wire, 'a');
  const b = await worker(wire, 'b');
  expect(await a.gather.ask('1')).toEqual({ answers: ['a 1'], asked: 1 });
  await settled();
  expect(await a.gather.ask('2')).toEqual({ answers: ['a 2', 'b 2'], asked: 2 });
  const c = await worker(wire, 'c');
  await settled();
  const three = await c.gather.ask('3');
  expect({ ...three, answers: three.answers.sort() }).toEqual({ answers: ['a 3', 'b 3', 'c 3'], asked: 3 });

  c.bus.isCut = true;
  expect(await a.gather.ask('4')).toEqual({ answers: ['a 4', 'b 4'], asked: 3 });
  // The next question does not wait for the worker that missed the deadline.
  expect(await a.gather.ask('5')).toEqual({ answers: ['a 5', 'b 5'], asked: 2 });
  c.bus.reconnect();
  await settled();
  expect((await a.gather.ask('6')).asked).toBe(3);

  c.gather.stop();
  await settled();
  expect(await a.gather.ask('7')).toEqual({ answers: ['a 7', 'b 7'], asked: 2 });
  b.bus.connected = false;
  expect(await b.gather.ask('8')).toEqual({ answers: ['b 8'], asked: 2 });
});

test('a worker that stops while it is asked is not waited for', async () => {
  const wire = new Wire();
  const a = await worker(wire, 'a');
  const b = await worker(wire, 'b');
  await settled();
  const asked = a.gather.ask('1');
  b.gather.stop();
  const { answers } = await asked;
  expect(answers).toContain('a 1');
});

test('a worker that fails to answer is silent, and a failure of its own reaches its caller, also a late one', async () => {
  const wire = new Wire();
  const a = await worker(wire, 'a');
  const bus = wire.bus();
  const handled: unknown[] = [];
  const subscribe: Bus['subscribe'] = (channel, handler) =>
    WireBus.prototype.subscribe.call(bus, channel, (payload, name) => {
      const result = handler(payload, name);
      if (result instanceof Promise) result.catch((error: unknown) => handled.push(error));
    });
  const failing = new Gather({
    bus: { publish: bus.publish.bind(bus), subscribe, onReconnect() {}, connected: true, close: async () => {} },
    channel: 'q',
    isQuestion: isText,
    isAnswer: isText,
    answer: async (): Promise<string> => {
      throw new Error('unreadable');
    },
    waitMsMax: 200,
  });
  await failing.start();
  await settled();
  expect(await a.gather.ask('1')).toEqual({ answers: ['a 1'], asked: 2 });
  expect(handled).toEqual([new Error('unreadable')]);
  await settled();
  a.bus.isCut = true;
  // The failure arrives long before the answers of the other workers.
  await expect(failing.ask('2')).rejects.toThrow('unreadable');
});
