/**
 * Sentinels report a new master while a bus asks them for the master, or never answer. The servers are real; the
 * Sentinels are stand-ins that hold their answers, because a real one answers within a millisecond.
 */

import { once } from 'node:events';
import { type AddressInfo, createServer, type Server, type Socket } from 'node:net';
import { afterAll, expect, it } from 'vitest';
import { Metrics } from '../../src/base/metrics/metrics.ts';
import { openBus } from '../../src/bus/open.ts';
import { eventually } from '../harness/api.ts';
import { RedisNodes } from '../harness/redis-nodes.ts';
import { silentLog as silent } from '../harness/silent-log.ts';

const redis = new RedisNodes();

afterAll(() => redis.remove());

const bulk = (text: string) => `$${text.length}\r\n${text}\r\n`;
const list = (...items: string[]) => `*${items.length}\r\n${items.map(bulk).join('')}`;
/** What a client of RESP 3 gets unasked. */
const push = (...items: string[]) => list(...items).replace('*', '>');

/** Answers clients that ask for the master, and tells those who listen that there is a new one. */
class SentinelStandIn {
  masterPort: number;
  readonly listeners = new Set<Socket>();
  /** Answers that wait for `release`; undefined = none waits. */
  held: (() => void)[] | undefined;
  readonly #server: Server;
  readonly #sockets = new Set<Socket>();

  constructor(masterPort: number) {
    this.masterPort = masterPort;
    this.#server = createServer((socket) => this.#serve(socket));
  }

  async start(): Promise<number> {
    this.#server.listen(0, '127.0.0.1');
    await once(this.#server, 'listening');
    return (this.#server.address() as AddressInfo).port;
  }

  announce(): void {
    for (const socket of this.listeners) socket.write(push('message', '+switch-master', 'main'));
  }

  release(): void {
    const held = this.held ?? [];
    this.held = undefined;
    for (const answer of held) answer();
  }

  async stop(): Promise<void> {
    for (const socket of this.#sockets) socket.destroy();
    this.#server.close();
    await once(this.#server, 'close');
  }

  #serve(socket: Socket): void {
    this.#sockets.add(socket);
    socket.on('error', () => {});
    socket.on('close', () => {
      this.#sockets.delete(socket);
      this.listeners.delete(socket);
    });
    let input = '';
    socket.on('data', (chunk) => {
      input += chunk;
      for (;;) {
        const command = /^\*(\d+)\r\n/.exec(input);
        if (!command) return;
        const words = Number(command[1]);
        const whole = new RegExp(`^\\*\\d+\\r\\n((?:\\$\\d+\\r\\n[^\\r]*\\r\\n){${words}})`).exec(input);
        if (!whole) return;
        input = input.slice(whole[0].length);
        this.#answer(
          socket,
          whole[1]!.split('\r\n').filter((_, n) => n % 2 === 1),
        );
      }
    });
  }

  #answer(socket: Socket, [name = '', verb = '']: string[]): void {
    if (name.toLowerCase() === 'subscribe') {
      this.listeners.add(socket);
      socket.write(`>3\r\n${bulk('subscribe')}${bulk(verb)}:1\r\n`);
    } else if (verb === 'get-master-addr-by-name') {
      const answer = () => socket.write(list('127.0.0.1', String(this.masterPort)));
      if (this.held) this.held.push(answer);
      else answer();
    } else if (verb === 'sentinels') socket.write(list());
    else socket.write(name.toLowerCase() === 'hello' ? '%0\r\n' : '+OK\r\n');
  }
}

it('a bus that asks for the master while a new one is reported connects to the new one', async () => {
  const [first, second] = [await redis.one(), await redis.one()];
  const sentinel = new SentinelStandIn(first.port);
  const url = `redis+sentinel://127.0.0.1:${await sentinel.start()}/main`;
  const bus = await openBus({ redis: { url }, installation: 'sentinel', log: silent, metrics: new Metrics() });
  try {
    const received: string[] = [];
    await bus.subscribe('channel', (payload) => void received.push(payload.toString()));
    // The connection that publishes and the one that subscribes.
    await eventually(() => bus.connected && sentinel.listeners.size === 2);

    sentinel.held = [];
    await first.stop();
    await eventually(() => sentinel.held!.length === 2);
    sentinel.masterPort = second.port;
    sentinel.announce();
    await eventually(() => sentinel.listeners.size === 0);
    sentinel.release();

    await eventually(() => bus.connected);
    bus.publish('channel', 'after');
    await eventually(() => received.includes('after'));
  } finally {
    await bus.close();
    await sentinel.stop();
  }
});

it('a Sentinel that never answers is passed over', async () => {
  const server = await redis.one();
  const [silentOne, other] = [new SentinelStandIn(server.port), new SentinelStandIn(server.port)];
  silentOne.held = [];
  const hosts = `127.0.0.1:${await silentOne.start()},127.0.0.1:${await other.start()}`;
  const settings = { url: `redis+sentinel://${hosts}/main` };
  const bus = await openBus({ redis: settings, installation: 'sentinel', log: silent, metrics: new Metrics() });
  try {
    await eventually(() => bus.connected);
    expect(silentOne.held.length).toBeGreaterThan(0);
  } finally {
    await bus.close();
    await Promise.all([silentOne.stop(), other.stop()]);
  }
});
