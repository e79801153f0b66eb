/**
 * The promises of every bus, tested with both kinds: Redis (a real server) and process channels (real child processes).
 * Two child processes have a bus each and carry out the orders of this file.
 */

import { type ChildProcess, execFileSync, fork } from 'node:child_process';
import { once } from 'node:events';
import { mkdtempSync, rmSync, symlinkSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { StartError } from '../../src/base/errors.ts';
import { limits } from '../../src/base/limits.ts';
import { Metrics } from '../../src/base/metrics/metrics.ts';
import { type Bus, busCounters } from '../../src/bus/bus.ts';
import { BusHub } from '../../src/bus/ipc-primary.ts';
import { isText, readMessage } from '../../src/bus/messages.ts';
import { openBus } from '../../src/bus/open.ts';
import { childPort, type Port, portPair } from '../../src/bus/port.ts';
import { channelNames, type LinkOwner, RedisBus } from '../../src/bus/redis.ts';
import { type RedisSettings, readRedisAddress } from '../../src/bus/redis-address.ts';
import { ClusterLink } from '../../src/bus/redis-cluster.ts';
import { SingleLink } from '../../src/bus/redis-single.ts';
import { type RedisNode, RedisNodes } from '../harness/redis-nodes.ts';
import { silentLog as silent } from '../harness/silent-log.ts';

const root = fileURLToPath(new URL('../..', import.meta.url));
const dir = mkdtempSync(join(tmpdir(), 'millrace-bus-'));

/** Every Redis that was started, so that a failed test leaves none. */
const redisNodes = new RedisNodes();

/** A process with a bus: carries out orders and reports the messages that it receives. */
const memberSource = `
import { openBus } from './dist/bus/open.js';
import { Metrics } from './dist/base/metrics/metrics.js';
const silent = { debug() {}, info() {}, warn() {}, error() {} };
const logged = [];
const log = { ...silent, error: (event, fields) => logged.push({ event, ...fields }) };
const metrics = new Metrics();
const bus = await openBus({ redis: JSON.parse(process.argv[2] ?? '{"url":""}'), installation: 'test', log, metrics });
const tell = (event, fields) => process.send({ member: event, ...fields });
const leave = new Map();
const verbs = {
  async subscribe({ channel }) {
    leave.set(channel, await bus.subscribe(channel, (payload) => tell('received', { channel, text: payload.toString('latin1') })));
  },
  unsubscribe: ({ channel }) => leave.get(channel)(),
  publish: ({ channel, texts }) => texts.forEach((text) => bus.publish(channel, text)),
  publishText: ({ channel, letter, length }) => bus.publish(channel, letter.repeat(length)),
  publishNoise: ({ channel, length }) => bus.publish(channel, Buffer.alloc(length, 200)),
  logged: () => logged.splice(0),
  dropped: () => metrics.snapshot().find(({ name }) => name === 'bus_dropped_total')?.value,
  publishBytes: ({ channel, hex }) => bus.publish(channel, Buffer.from(hex, 'hex')),
  connected: () => bus.connected,
  block: ({ ms }) => void Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0, ms),
};
bus.onReconnect(() => tell('reconnected', {}));
process.on('message', async (message) => {
  if (!message.verb || message.millrace) return;
  tell('done', { id: message.id, value: await verbs[message.verb](message) });
});
process.on('disconnect', () => process.exit());
`;

class Member {
  readonly child: ChildProcess;
  readonly received: [channel: string, text: string][] = [];
  reconnects = 0;
  #waiting = new Map<number, (value: unknown) => void>();
  #id = 0;

  constructor(args: string[]) {
    this.child = fork(join(dir, 'member.mjs'), args);
    this.child.on('message', (message: Record<string, unknown>) => {
      if (message['member'] === 'received') this.received.push([String(message['channel']), String(message['text'])]);
      if (message['member'] === 'reconnected') this.reconnects += 1;
      if (message['member'] === 'done') this.#waiting.get(message['id'] as number)?.(message['value']);
    });
  }

  tell(verb: string, fields: object = {}): Promise<unknown> {
    const id = this.#id++;
    return new Promise((resolve) => {
      this.#waiting.set(id, resolve);
      this.child.send({ verb, id, ...fields });
    });
  }

  async stop(): Promise<void> {
    if (this.child.exitCode !== null || this.child.signalCode !== null) return;
    const gone = once(this.child, 'exit');
    this.child.kill('SIGKILL');
    await gone;
  }

  textsOn(channel: string): string[] {
    return this.received.filter(([on]) => on === channel).map(([, text]) => text);
  }
}

beforeAll(() => {
  const config = {
    extends: join(root, 'tsconfig.build.json'),
    compilerOptions: {
      rootDir: join(root, 'src'),
      outDir: join(dir, 'dist'),
      typeRoots: [join(root, 'node_modules/@types')],
    },
    files: [join(root, 'src/bus/open.ts')],
    include: [],
  };
  writeFileSync(join(dir, 'tsconfig.json'), JSON.stringify(config));
  writeFileSync(join(dir, 'package.json'), '{"type":"module"}');
  writeFileSync(join(dir, 'member.mjs'), memberSource);
  symlinkSync(join(root, 'node_modules'), join(dir, 'node_modules'));
  execFileSync(join(root, 'node_modules/.bin/tsc'), ['-p', dir], { stdio: 'inherit' });
});
afterAll(async () => {
  await redisNodes.remove();
  rmSync(dir, { recursive: true, force: true });
});

interface Setup {
  /** Starts a bus in a separate process. */
  member(): Member;
  /** Opens a bus in this process. */
  local(metrics?: Metrics): Promise<Bus>;
  stop(): Promise<void>;
}

async function ipcSetup(): Promise<Setup & { hub: BusHub }> {
  const hub = new BusHub(new Metrics());
  return {
    hub,
    member() {
      const member = new Member([]);
      hub.attach(childPort(member.child));
      return member;
    },
    local(metrics = new Metrics()) {
      const [ours, hubs] = portPair();
      hub.attach(hubs);
      return openBus({ redis: { url: '' }, installation: 'test', log: silent, metrics, port: ours });
    },
    async stop() {},
  };
}

async function redisSetup(): Promise<Setup & { redis: RedisNode }> {
  const redis = await redisNodes.one();
  return { redis, ...membersOf({ url: redis.url }), stop: () => redis.stop() };
}

async function clusterSetup(hasReplicas = false): Promise<Setup & { nodes: RedisNode[] }> {
  const { nodes, url } = await redisNodes.cluster({ hasReplicas });
  return { nodes, ...membersOf({ url }), stop: () => stopAll(nodes) };
}

function membersOf(redis: RedisSettings): Pick<Setup, 'member' | 'local'> {
  return {
    member: () => new Member([JSON.stringify(redis)]),
    local: (metrics = new Metrics()) => openBus({ redis, installation: 'test', log: silent, metrics }),
  };
}

async function stopAll(nodes: RedisNode[]): Promise<void> {
  await Promise.all(nodes.map((node) => node.stop()));
}

describe.each([
  ['process channels', ipcSetup],
  ['Redis', redisSetup],
  ['a Redis Cluster', clusterSetup],
] as [string, () => Promise<Setup>][])('a bus over %s', (_, setUp) => {
  let setup: Setup;
  let one: Member;
  let two: Member;

  beforeAll(async () => {
    setup = await setUp();
    [one, two] = [setup.member(), setup.member()];
    await until(async () => (await one.tell('connected')) === true && (await two.tell('connected')) === true);
  });
  afterAll(async () => {
    await Promise.all([one.stop(), two.stop()]);
    await setup.stop();
  });

  it('carries a message to every subscriber, the sender too, once the subscription is confirmed', async () => {
    await Promise.all([one.tell('subscribe', { channel: 'a' }), two.tell('subscribe', { channel: 'a' })]);
    await one.tell('publish', { channel: 'a', texts: ['hello'] });
    await until(() => one.textsOn('a').length === 1 && two.textsOn('a').length === 1);
    expect([one.textsOn('a'), two.textsOn('a')]).toEqual([['hello'], ['hello']]);
  });

  it('keeps the order of a channel', async () => {
    await two.tell('subscribe', { channel: 'order' });
    const texts = Array.from({ length: 2000 }, (_, i) => String(i));
    await one.tell('publish', { channel: 'order', texts });
    await until(() => two.textsOn('order').length === texts.length);
    expect(two.textsOn('order')).toEqual(texts);
  });

  it('keeps every byte', async () => {
    await two.tell('subscribe', { channel: 'bytes' });
    const bytes = Buffer.from(Array.from({ length: 256 }, (_, i) => i));
    await one.tell('publishBytes', { channel: 'bytes', hex: bytes.toString('hex') });
    await one.tell('publishBytes', { channel: 'bytes', hex: '' });
    await one.tell('publish', { channel: 'bytes', texts: ['é\u0000€'] });
    await until(() => two.textsOn('bytes').length === 3);
    expect(two.textsOn('bytes')).toEqual([bytes.toString('latin1'), '', Buffer.from('é\u0000€').toString('latin1')]);
  });

  it('delivers a message of the largest size, refuses a larger one at its sender, and goes on', async () => {
    await two.tell('subscribe', { channel: 'large' });
    const most = limits.busSentCharsMax;
    const lengths = () => two.textsOn('large').map(({ length }) => length);
    const droppedBefore = Number(await one.tell('dropped'));
    await one.tell('publishNoise', { channel: 'large', length: 8_000_000 });
    await until(() => lengths().length === 1, 30_000);
    // A character of a text has up to three bytes.
    await one.tell('publishText', { channel: 'large', letter: '€', length: most });
    await until(() => lengths().length === 2, 30_000);
    await one.tell('publishNoise', { channel: 'large', length: most });
    await until(() => lengths().length === 3, 30_000);
    for (const verb of ['publishText', 'publishNoise']) {
      await one.tell(verb, { channel: 'large', letter: 'x', length: most + 1 });
    }
    await one.tell('publish', { channel: 'large', texts: ['small'] });
    await until(() => two.textsOn('large').includes('small'), 30_000);
    expect(lengths()).toEqual([8_000_000, 3 * most, most, 5]);
    expect(await one.tell('dropped')).toBe(droppedBefore + 2);
    const reason = `a message has at most ${most} characters`;
    expect(await one.tell('logged')).toEqual([
      { event: 'bus_message_too_large', channel: 'large', length: most + 1, reason },
    ]);
    expect([one.reconnects, two.reconnects]).toEqual([0, 0]);
  });

  it('is silent after the subscription ended, and speaks when it is made again', async () => {
    await two.tell('subscribe', { channel: 'left' });
    await two.tell('unsubscribe', { channel: 'left' });
    await one.tell('publish', { channel: 'left', texts: ['missed'] });
    await two.tell('subscribe', { channel: 'left' });
    await one.tell('publish', { channel: 'left', texts: ['received'] });
    await until(() => two.textsOn('left').includes('received'));
    expect(two.textsOn('left').filter((text) => text !== 'missed')).toEqual(['received']);
  });

  it('has independent subscribers of one channel in one process', async () => {
    const bus = await setup.local();
    await until(() => bus.connected);
    const [first, second]: [string[], string[]] = [[], []];
    const leaveFirst = await bus.subscribe('both', (payload) => first.push(payload.toString()));
    await bus.subscribe('both', (payload) => second.push(payload.toString()));
    bus.publish('both', '1');
    await until(() => second.length === 1);
    leaveFirst();
    leaveFirst();
    bus.publish('both', '2');
    await until(() => second.length === 2);
    expect([first, second]).toEqual([['1'], ['1', '2']]);
    await bus.close();
    bus.publish('both', '3');
  });

  it('drops and counts messages that no reader takes, in bounded memory, and reports one gap when there is room', async () => {
    const metrics = new Metrics();
    const bus = await setup.local(metrics);
    await until(() => bus.connected);
    const count = (name: string) => metrics.snapshot().find((sample) => sample.name === name)?.value;
    const before = count('bus_gaps_total')!;
    const received: string[] = [];
    await bus.subscribe('after', (payload) => received.push(payload.toString()));
    const inFlight: (number | undefined)[] = [];
    bus.onReconnect(() => {
      inFlight.push(bus.inFlight);
      bus.publish('after', 'repeated');
    });
    const payload = Buffer.alloc(100_000);
    for (let i = 0; i < 1000; i += 1) bus.publish('flood', payload);
    expect(count('bus_dropped_total')).toBeGreaterThan(800);
    expect(inFlight).toEqual([]);
    await until(() => received.length > 0);
    expect(received).toEqual(['repeated']);
    expect(inFlight[0]).toBeLessThan(60);
    expect(count('bus_gaps_total')).toBe(before + 1);
    await bus.close();
  });

  it('counts and drops messages that a handler does not understand, and continues', async () => {
    const metrics = new Metrics();
    const bus = await setup.local(metrics);
    await until(() => bus.connected);
    const received: string[] = [];
    await bus.subscribe('strange', (payload) => void readMessage(payload, isText));
    await bus.subscribe('strange', () => {
      throw new RangeError('on purpose');
    });
    await bus.subscribe('strange', (payload) => received.push(payload.toString()));
    const strange = ['', '{', 'null', '{}', '"text"'];
    for (const text of strange) bus.publish('strange', text);
    await until(() => received.length === strange.length);
    expect(received).toEqual(strange);
    const count = (name: string) => metrics.snapshot().find((sample) => sample.name === name)?.value;
    expect([count('bus_unread_total'), count('bus_bugs_total')]).toEqual([4, 5]);
    await bus.close();
  });

  it('serves thousands of channels, and only those that are subscribed in the end', async () => {
    const bus = await setup.local();
    await until(() => bus.connected);
    const received: string[] = [];
    const channels = Array.from({ length: 3_000 }, (_, n) => `many${n}`);
    const subscribe = (channel: string) => bus.subscribe(channel, (payload) => received.push(`${channel} ${payload}`));
    const leave = await Promise.all(channels.map(subscribe));
    for (const channel of channels) bus.publish(channel, 'first');
    await until(() => received.length === channels.length);
    expect(new Set(received)).toEqual(new Set(channels.map((channel) => `${channel} first`)));
    received.length = 0;
    // The first thousand is subscribed again in the same turn of the loop.
    for (const end of leave.slice(0, 2_000)) end();
    await Promise.all(channels.slice(0, 1_000).map(subscribe));
    for (const channel of channels) bus.publish(channel, 'second');
    await until(() => received.length === 2_000);
    expect(received.filter((text) => /many1\d{3} /.test(text))).toEqual([]);
    await bus.close();
  });

  it('continues when a subscriber dies', async () => {
    const third = setup.member();
    await until(async () => (await third.tell('connected')) === true);
    await third.tell('subscribe', { channel: 'mortal' });
    await third.stop();
    await two.tell('subscribe', { channel: 'mortal' });
    await one.tell('publish', { channel: 'mortal', texts: ['still here'] });
    await until(() => two.textsOn('mortal').length === 1);
  });
});

describe('the hub of process channels', () => {
  it('forgets the subscriptions of a dead worker', async () => {
    const { hub, member } = await ipcSetup();
    const worker = member();
    await worker.tell('subscribe', { channel: 'x' });
    expect(hub.channelCount).toBe(1);
    await worker.stop();
    await until(() => hub.channelCount === 0);
  });

  it('tells a worker that did not read that messages were lost, once it reads again', async () => {
    const { member } = await ipcSetup();
    const [sender, reader] = [member(), member()];
    await reader.tell('subscribe', { channel: 'lost' });
    const blocked = reader.tell('block', { ms: 1_000 });
    const texts = Array.from({ length: limits.busMessagesInFlightMax }, () => '');
    for (let n = 0; n < 3; n += 1) await sender.tell('publish', { channel: 'lost', texts });
    await blocked;
    await until(() => reader.reconnects > 0);
    expect(reader.textsOn('lost').length).toBeLessThan(3 * texts.length);
    await sender.tell('publish', { channel: 'lost', texts: ['last'] });
    await until(() => reader.textsOn('lost').at(-1) === 'last');
    await Promise.all([sender.stop(), reader.stop()]);
  });

  it('skips a worker that does not read, and serves it again when it does', async () => {
    const metrics = new Metrics();
    const hub = new BusHub(metrics);
    let sent: (() => void)[] = [];
    let receive: (message: unknown) => void = () => {};
    const stuck: Port = {
      send: (_message, done) => sent.push(done),
      onMessage: (callback) => {
        receive = callback;
      },
      onClose() {},
    };
    hub.attach(stuck);
    receive({ millrace: 'bus', verb: 'subscribe', channel: 'x', id: 1 });
    const carry = () => receive({ millrace: 'bus', verb: 'carry', entries: [['x', 'y'.repeat(1_000_000), 0]] });
    const dropped = () => metrics.snapshot().find(({ name }) => name === 'bus_hub_dropped_total')?.value;
    for (let i = 0; i < 20; i += 1) carry();
    await turn();
    expect(dropped()).toBe(12);
    for (const done of sent) done();
    sent = [];
    carry();
    await turn();
    expect([dropped(), sent.length]).toEqual([12, 1]);
  });
});

describe('a Redis Cluster', () => {
  it('may lose a node and get it back: its channels are restored, the others never stop', async () => {
    const { nodes, local, stop } = await clusterSetup();
    const [one, two] = [await local(), await local()];
    await until(() => one.connected && two.connected);
    const channels = Array.from({ length: 30 }, (_, i) => `shard${i}`);
    const received = new Set<string>();
    for (const channel of channels) await two.subscribe(channel, (_, from) => received.add(from));
    const publishAll = () => {
      for (const channel of channels) one.publish(channel, 'x');
    };
    publishAll();
    await until(() => received.size === channels.length);
    let reconnects = 0;
    two.onReconnect(() => {
      reconnects += 1;
    });
    await nodes[2]!.stop();
    await until(() => !two.connected);
    received.clear();
    publishAll();
    await until(() => received.size >= channels.length / 3);
    expect(received.size).toBeLessThan(channels.length);
    await nodes[2]!.start();
    await until(() => two.connected && reconnects === 1);
    received.clear();
    await until(() => {
      publishAll();
      return received.size === channels.length;
    });
    await Promise.all([one.close(), two.close()]);
    await stop();
  }, 60_000);

  it('may move a slot with many channels: all of them follow, and the others are asked for once', {
    timeout: 60_000,
  }, async () => {
    const { nodes, local, stop } = await clusterSetup();
    const bus = await local();
    await until(() => bus.connected);
    const received = new Set<string>();
    // All of the first ones are in one slot.
    const channels = Array.from({ length: 2_000 }, (_, n) => (n < 1_500 ? `{tag}${n}` : `other${n}`));
    await Promise.all(channels.map((channel) => bus.subscribe(channel, () => received.add(channel))));
    const tell = (node: RedisNode, ...words: string[]) => node.cli('cluster', ...words).trim();
    const slot = tell(nodes[0]!, 'keyslot', 'tag');
    const from = Math.floor(Number(slot) / 5462);
    const [source, target] = [nodes[from]!, nodes[(from + 1) % 3]!];
    tell(target, 'setslot', slot, 'importing', tell(source, 'myid'));
    tell(source, 'setslot', slot, 'migrating', tell(target, 'myid'));
    source.cli('config', 'resetstat');
    for (const node of [target, source, nodes[(from + 2) % 3]!]) {
      tell(node, 'setslot', slot, 'node', tell(target, 'myid'));
    }
    await until(() => {
      for (const channel of channels) bus.publish(channel, 'x');
      return received.size === channels.length;
    });
    await until(() => bus.connected);
    // One question for each slot that the node had, and one or two for the slot that has moved.
    const calls = Number(/cmdstat_ssubscribe:calls=(\d+)/.exec(source.cli('info', 'commandstats'))?.[1] ?? 0);
    expect(calls).toBeLessThan(600);
    await bus.close();
    await stop();
  });

  it('may move a slot while it is used', { timeout: 60_000 }, async () => {
    const { nodes, local, stop } = await clusterSetup();
    const bus = await local();
    await until(() => bus.connected);
    const received: string[] = [];
    await bus.subscribe('moving', (payload) => received.push(payload.toString()));
    const tell = (node: RedisNode, ...words: string[]) => node.cli('cluster', ...words).trim();
    const slot = tell(nodes[0]!, 'keyslot', 'millrace:test:1:moving');
    const from = Math.floor(Number(slot) / 5462);
    const source = tell(nodes[from]!, 'myid');
    const target = tell(nodes[(from + 1) % 3]!, 'myid');
    // Moves a slot as a resharding does: the importing master takes it with a new epoch, so that gossip of the old
    // owner cannot undo the move.
    tell(nodes[(from + 1) % 3]!, 'setslot', slot, 'importing', source);
    tell(nodes[from]!, 'setslot', slot, 'migrating', target);
    let reconnects = 0;
    bus.onReconnect(() => {
      reconnects += 1;
    });
    for (const node of [nodes[(from + 1) % 3]!, nodes[from]!, nodes[(from + 2) % 3]!]) {
      tell(node, 'setslot', slot, 'node', target);
    }
    await until(() => reconnects > 0 && bus.connected);
    await until(() => {
      bus.publish('moving', 'moved');
      return received.length > 0;
    });
    await bus.close();
    await stop();
  });
});

describe.each([
  ['Redis', () => redisSetup().then(({ redis, stop }) => ({ url: redis.url, nodes: [redis], stop }))],
  [
    'a Redis Cluster',
    () => redisNodes.cluster().then(({ url, nodes }) => ({ url, nodes, stop: () => stopAll(nodes) })),
  ],
])('while the subscriptions at %s are restored', (_, setUp) => {
  /** Opens a bus that calls `onListed` each time after its link has listed the channels. */
  function openListed(url: string, onListed: () => void): RedisBus {
    const address = readRedisAddress({ url });
    const listed = (owner: LinkOwner): LinkOwner => ({
      ...owner,
      channels: () => {
        const channels = owner.channels();
        onListed();
        return channels;
      },
    });
    return new RedisBus(
      (owner) =>
        'cluster' in address
          ? new ClusterLink(address.cluster, listed(owner))
          : new SingleLink(address.server, listed(owner)),
      busCounters(new Metrics()),
      silent,
      channelNames('test'),
    );
  }

  it('a channel that is left is not subscribed to in the end', { timeout: 60_000 }, async () => {
    const { url, nodes, stop } = await setUp();
    let leaveLast: (() => void) | undefined;
    let isCut = false;
    const bus = openListed(url, () => {
      if (!isCut) return;
      isCut = false;
      setImmediate(() => leaveLast?.());
    });
    let reconnects = 0;
    bus.onReconnect(() => {
      reconnects += 1;
    });
    await until(() => bus.connected);
    const channels = Array.from({ length: 5_000 }, (_, n) => `kept${n}`);
    await Promise.all(channels.map((channel) => bus.subscribe(channel, () => {})));
    leaveLast = await bus.subscribe('left', () => {});
    const pubsub = nodes.length > 1 ? 'shardchannels' : 'channels';
    const subscribedAt = (node: RedisNode) => node.cli('pubsub', pubsub).split('\n').filter(Boolean);
    const hasLeft = (node: RedisNode) => subscribedAt(node).includes('millrace:test:1:left');
    isCut = true;
    nodes.find(hasLeft)!.cli('client', 'kill', 'type', 'pubsub');
    await until(() => reconnects > 0 && bus.connected);
    await until(() => !nodes.some(hasLeft));
    expect(nodes.flatMap(subscribedAt)).toHaveLength(channels.length);
    await bus.close();
    await stop();
  });
});

describe('a Redis URL', () => {
  it('names a server, servers that Sentinels watch, or a cluster', async () => {
    const of = (url: string, more: object = {}) => readRedisAddress({ url, ...more });
    expect(of('redis://h')).toEqual({ server: { host: 'h', port: 6379 } });
    expect(of('rediss://u:p%40:q@[::1]:7/3')).toEqual({
      server: { host: '::1', port: 7, db: 3, username: 'u', password: 'p@:q', tls: {} },
    });
    expect(of('redis://:secret@h:1')).toEqual({ server: { host: 'h', port: 1, password: 'secret' } });
    expect(of('redis+cluster://h')).toEqual({ cluster: { nodes: [{ host: 'h', port: 6379 }], login: {} } });
    const nodes = [
      { host: 'a', port: 1 },
      { host: 'b', port: 2 },
    ];
    expect(of('rediss://u:p%40@a:1,b:2')).toEqual({
      cluster: { nodes, login: { username: 'u', password: 'p@', tls: {} } },
    });
    expect(of('redis+sentinel://:p@a:1,b:2/main', { sentinelUser: 'w', sentinelPassword: 's' })).toEqual({
      server: {
        ...{ sentinels: nodes, name: 'main', password: 'p', failoverDetector: true },
        ...{ sentinelUsername: 'w', sentinelPassword: 's' },
      },
    });
    const wrong = [
      'localhost:6379',
      'http://h',
      'redis://',
      'redis+sentinel://h',
      'redis://h/main',
      'redis+cluster://h/1',
    ];
    for (const url of wrong) {
      await expect(
        openBus({ redis: { url }, installation: 'test', log: silent, metrics: new Metrics() }),
      ).rejects.toThrow(StartError);
    }
    expect(() => of('rediss://h', { tlsCa: join(dir, 'none.pem') })).toThrow(/REDIS_TLS_CA/);
  });
});

async function sentinelSetup(): Promise<Setup & { master: RedisNode }> {
  const { master, nodes, settings } = await redisNodes.sentinels();
  return { master, ...membersOf(settings), stop: () => stopAll(nodes) };
}

/** A Sentinel that has no processor for 2 s does nothing for 30 s. */
const failoverMsMax = 60_000;

/** Two buses receive each other's messages again after `fail`. */
async function surviving(setup: Setup, fail: () => Promise<void>): Promise<void> {
  const [one, two] = [await setup.local(), await setup.local()];
  const received = new Set<string>();
  const channels = Array.from({ length: 20 }, (_, i) => `channel${i}`);
  await until(() => one.connected && two.connected);
  for (const channel of channels) await two.subscribe(channel, (payload, from) => received.add(`${from} ${payload}`));
  const reaches = async (text: string) => {
    const wanted = channels.map((channel) => `${channel} ${text}`);
    await until(() => {
      for (const channel of channels) one.publish(channel, text);
      return wanted.every((each) => received.has(each));
    }, failoverMsMax);
  };
  await reaches('before');
  let reconnects = 0;
  two.onReconnect(() => {
    reconnects += 1;
  });
  await fail();
  await until(() => reconnects > 0, failoverMsMax);
  await reaches('after');
  await Promise.all([one.close(), two.close()]);
}

describe('Redis with Sentinels, and over TLS', () => {
  it.each([
    ['dies', (master: RedisNode) => master.stop()],
    ['is frozen', async (master: RedisNode) => void master.process!.kill('SIGSTOP')],
  ])('another one takes over when the master %s', { timeout: 150_000 }, async (_, fail) => {
    const setup = await sentinelSetup();
    await surviving(setup, () => fail(setup.master));
    await setup.stop();
  });

  it('is reached over TLS with a certificate of an own authority, and not without it', {
    timeout: 60_000,
  }, async () => {
    const { ca, args } = redisNodes.tls();
    const redis = await redisNodes.one({ args, tls: true });
    const open = (tlsCa: string) =>
      openBus({
        redis: { url: `rediss://127.0.0.1:${redis.port}`, tlsCa },
        installation: 'test',
        log: silent,
        metrics: new Metrics(),
      });
    const [trusted, strange] = [await open(ca), await open('')];
    await until(() => trusted.connected);
    await until(() => /certificate/.test(strange.failure ?? ''));
    expect(strange.connected).toBe(false);
    await Promise.all([trusted.close(), strange.close(), redis.stop()]);
  });
});

describe('a Redis Cluster with replicas', () => {
  it('a replica takes over when its master dies', { timeout: 90_000 }, async () => {
    const setup = await clusterSetup(true);
    await surviving(setup, () => setup.nodes[1]!.stop());
    await setup.stop();
  });
});

describe('Redis', () => {
  it('takes the subscriptions and the ends of one turn in few commands', async () => {
    const { redis, local, stop } = await redisSetup();
    const bus = await local();
    await until(() => bus.connected);
    const calls = (command: string) =>
      Number(new RegExp(`cmdstat_${command}:calls=(\\d+)`).exec(redis.cli('info', 'commandstats'))?.[1] ?? 0);
    const before = calls('subscribe');
    const leave = await Promise.all(Array.from({ length: 3_000 }, (_, n) => bus.subscribe(`c${n}`, () => {})));
    expect(calls('subscribe') - before).toBeLessThanOrEqual(3);
    for (const end of leave) end();
    await until(() => redis.cli('pubsub', 'channels').trim() === '');
    expect(calls('unsubscribe')).toBeLessThanOrEqual(3);
    await bus.close();
    await stop();
  });

  it('may be killed and restarted: subscriptions are restored without a restart', async () => {
    const { redis, member, stop } = await redisSetup();
    const [one, two] = [member(), member()];
    await until(async () => (await one.tell('connected')) === true && (await two.tell('connected')) === true);
    await two.tell('subscribe', { channel: 'before' });
    await redis.stop();
    await until(async () => (await one.tell('connected')) === false && (await two.tell('connected')) === false);
    // Neither order may wait for the server, and the subscription must be in force once the server runs again.
    await two.tell('subscribe', { channel: 'while away' });
    await one.tell('publish', { channel: 'before', texts: ['lost'] });
    await redis.start();
    await until(() => one.reconnects === 1 && two.reconnects === 1);
    await until(async () => (await one.tell('connected')) === true);
    await one.tell('publish', { channel: 'before', texts: ['b'] });
    await one.tell('publish', { channel: 'while away', texts: ['w'] });
    await until(() => two.received.length === 2);
    expect(two.received).toEqual([
      ['before', 'b'],
      ['while away', 'w'],
    ]);
    await Promise.all([one.stop(), two.stop(), stop()]);
  });

  it('may become a black hole: it is noticed, nothing grows, and it heals', async () => {
    const { redis, local, stop } = await redisSetup();
    const metrics = new Metrics();
    const bus = await local(metrics);
    await until(() => bus.connected);
    const received: string[] = [];
    await bus.subscribe('x', (payload) => received.push(payload.toString()));
    redis.process!.kill('SIGSTOP');
    const begun = performance.now();
    while (bus.connected) {
      bus.publish('flood', Buffer.alloc(50_000));
      await turn();
    }
    expect(performance.now() - begun).toBeLessThan(20_000);
    await bus.subscribe('y', () => {});
    expect(performance.now() - begun).toBeLessThan(25_000);
    redis.process!.kill('SIGCONT');
    await until(() => bus.connected);
    bus.publish('x', 'healed');
    await until(() => received.includes('healed'));
    await bus.close();
    await stop();
  });

  it('need not be there at the start', async () => {
    const redis = await redisNodes.one();
    await redis.stop();
    const bus = await openBus({ redis: { url: redis.url }, installation: 'test', log: silent, metrics: new Metrics() });
    let reconnects = 0;
    bus.onReconnect(() => {
      reconnects += 1;
    });
    const received: string[] = [];
    await bus.subscribe('x', (payload) => received.push(payload.toString()));
    expect(bus.connected).toBe(false);
    await redis.start();
    await until(() => bus.connected && reconnects === 1);
    bus.publish('x', 'here');
    await until(() => received.length === 1);
    await bus.close();
    await redis.stop();
  });
});

async function until(condition: () => boolean | Promise<boolean>, msMax = 20_000): Promise<void> {
  const deadline = performance.now() + msMax;
  while (!(await condition())) {
    if (performance.now() > deadline) throw new Error(`it did not come true: ${condition}`);
    await new Promise((resolve) => setTimeout(resolve, 10));
  }
}

function turn(): Promise<void> {
  return new Promise((resolve) => setImmediate(resolve));
}

it('two installations on one Redis stay separate', async () => {
  const { redis, stop } = await redisSetup();
  const open = (installation: string) =>
    openBus({ redis: { url: redis.url }, installation, log: silent, metrics: new Metrics() });
  const [one, other] = [await open('one'), await open('other')];
  await until(() => one.connected && other.connected);
  const received: string[] = [];
  await one.subscribe('sessions', (payload, channel) => received.push(`one ${channel} ${payload}`));
  await other.subscribe('sessions', (payload, channel) => received.push(`other ${channel} ${payload}`));
  other.publish('sessions', 'theirs');
  one.publish('sessions', 'ours');
  await until(() => received.length === 2);
  expect(received.toSorted()).toEqual(['one sessions ours', 'other sessions theirs']);
  await Promise.all([one.close(), other.close()]);
  await stop();
});
