/**
 * The watch of the streams on three real nodes: what its reports promise to deletes, and what is no loss after
 * PostgreSQL was unavailable.
 */
import { randomBytes } from 'node:crypto';
import { readdirSync, readFileSync } from 'node:fs';
import { DiscardPolicy, type JetStreamManager, StorageType } from '@nats-io/jetstream';
import { afterAll, afterEach, beforeAll, beforeEach, expect, test } from 'vitest';
import { systemClock } from '../../src/base/clock.ts';
import type { Log } from '../../src/base/log.ts';
import { Metrics } from '../../src/base/metrics/metrics.ts';
import { loadConfig } from '../../src/base/settings/config.ts';
import { live } from '../../src/journal/journal.ts';
import type { Queries } from '../../src/postgres/client.ts';
import { checkRunningStreams } from '../../src/stream/check-streams.ts';
import { prepareStreams } from '../../src/stream/prepare-streams.ts';
import { StreamClient } from '../../src/stream/stream-client.ts';
import type { StreamLink } from '../../src/stream/stream-link.ts';
import type { StreamSettings } from '../../src/stream/stream-names.ts';
import { StreamWatch } from '../../src/stream/stream-watch.ts';
import { StreamWriter } from '../../src/stream/stream-writer.ts';
import { eventually } from '../harness/api.ts';
import { NatsCluster } from '../harness/nats-cluster.ts';

const mebibyte = 1024 ** 2;
const isLeader = () => true;
let nodes: NatsCluster;
let settings: StreamSettings;
let client: StreamClient;
let writer: StreamWriter;
let positions: Positions;
let watch: StreamWatch;
let metrics: Metrics;
let lastOrder = 1n;
let installations = 0;
/** Number of the first message of the live stream. */
let first = 0;
const events: { event: string; kind?: unknown; reason?: unknown }[] = [];

const note = (event: string, fields: object) => void events.push({ event, ...fields });
const log = { debug: () => {}, info: note, warn: note, error: note } as unknown as Log;

/** The tables `streams` and `lease` in memory. */
class Positions implements Queries {
  isUnavailable = false;
  /** Called when a lease is taken, before the answer. */
  onLease: (() => Promise<void>) | undefined;
  /** The other host that has the lease; undefined: each caller gets it. */
  holder: string | undefined;
  queries = 0;
  readonly rows = new Map<string, { name: string; writer: number; created: string; floor: string; last: string }>();

  async query<Row>(text: string, values: unknown[] = []): Promise<Row[]> {
    this.queries += 1;
    if (this.isUnavailable) throw Object.assign(new Error('no server'), { code: 'ECONNREFUSED' });
    const [name, created, floor, last, ...read] = values as [string, string, number, number, string, number, number];
    const row = this.rows.get(name);
    if (text.startsWith('select name, writer')) return (row ? [row] : []) as Row[];
    if (text.startsWith('insert into lease')) {
      await this.onLease?.();
      return [{ holder: this.holder ?? values[1] }] as Row[];
    }
    if (text.startsWith('update streams')) {
      if ([row!.created, row!.floor, row!.last].join() !== read.slice(0, 3).join()) return [];
      this.rows.set(name, { ...row!, created, floor: String(floor), last: String(last) });
      return [{ name }] as Row[];
    }
    throw new Error(`unexpected: ${text}`);
  }
}

/** As after a restart: nothing is remembered. */
function newWatch(): StreamWatch {
  metrics = new Metrics();
  const quarantine = { addGap: async () => 'added' as const };
  const deps = { client, writer, settings, postgres: positions, clock: systemClock, log, metrics };
  return new StreamWatch({ ...deps, quarantine: quarantine as never, isLeader, isAccepting: true });
}

beforeAll(async () => {
  nodes = await NatsCluster.start();
});

afterAll(() => nodes?.stop());

beforeEach(async () => {
  installations += 1;
  settings = { ...loadConfig({}).stream, url: nodes.url, name: `watch${installations}`, bytesMax: 64 * mebibyte };
  client = new StreamClient(
    settings,
    log,
    'test',
    (link) => prepareStreams(link, settings, { installation: 'watch', copies: [] }),
    (link) => checkRunningStreams(link, settings),
  );
  await client.start();
  const local = { append: () => Promise.reject(new Error('not used')) };
  writer = new StreamWriter({ client, settings, clock: systemClock, log, metrics: new Metrics(), local });
  positions = new Positions();
  for (const lane of ['live', 'late']) {
    const name = `${settings.name}-${lane}`;
    const { created, begin } = await client.link!.laneState(name);
    const before = String(begin - 1);
    positions.rows.set(name, { name, writer: installations, created, floor: before, last: before });
    if (lane === 'live') first = begin;
  }
  watch = newWatch();
  events.length = 0;
});

afterEach(async () => {
  writer.close();
  await client.close();
  await nodes.manage(async (manager) => {
    for (const lane of ['live', 'late']) await manager.streams.delete(`${settings.name}-${lane}`);
  });
});

async function append(bytes = 10): Promise<void> {
  lastOrder += 1n;
  await writer.append([{ lane: live, order: lastOrder, rows: 1, parts: [randomBytes(bytes)], device: 1 }]);
}

/** Confirms every frame of the live stream, as shipping does. */
async function confirmAll(): Promise<void> {
  const name = `${settings.name}-live`;
  const consumer = await client.link!.consumer(name);
  await eventually(async () => {
    for await (const message of await consumer.fetch({ max_messages: 100, expires: 1_000 })) message.ack();
    const { num_pending, num_ack_pending } = await client.link!.manager.consumers.info(name, 'millrace');
    return num_pending + num_ack_pending === 0;
  }, 60_000);
}

async function liveReport() {
  const reports = await watch.reports(10_000);
  return reports.find(({ writer: id, run }) => id === installations && run === liveCreated());
}

function liveCreated(): string {
  return positions.rows.get(`${settings.name}-live`)!.created;
}

test('a report has the frames that were there when it was requested, of every publisher', async () => {
  await append();
  await confirmAll();
  await eventually(async () => {
    await watch.round();
    return (await liveReport())?.orderShipped === String(first);
  }, 30_000);
  // A process publishes a frame and ends: no other report knows of it.
  await client.link!.publish(`${settings.name}-live`, `${settings.name}.live.0`, Buffer.from('frame'), 10_000);
  expect(await liveReport()).toMatchObject({ orderHigh: String(first + 1), orderShipped: String(first) });
});

/** True when no thread of the process runs. */
function isStopped(pid: number): boolean {
  const threads = readdirSync(`/proc/${pid}/task`);
  return threads.every((thread) => / T /.test(readFileSync(`/proc/${pid}/task/${thread}/stat`, 'utf8')));
}

/** Returns a metric of the live stream; undefined while its value is not known. */
function metricOf(name: string): number | undefined {
  return metrics.snapshot().find((each) => each.name === name && each.labels === '{lane="live"}')?.value;
}

test('the age of the oldest frame is that of one that waits, also beside stored ones that stay', async () => {
  expect(metricOf('stream_frames')).toBeUndefined();
  positions.isUnavailable = true;
  await append();
  await confirmAll();
  await watch.round();
  expect([metricOf('stream_frames'), metricOf('stream_oldest_seconds')]).toEqual([0, 0]);
  const storedAt = (await client.link!.timeOf(`${settings.name}-live`, first))!;
  await eventually(() => Date.now() - storedAt > 2_000);
  await append();
  // The server of the consumer learns of a frame a moment after its acknowledgement.
  await eventually(async () => {
    await watch.round();
    return metricOf('stream_frames') === 1;
  });
  expect(metricOf('stream_oldest_seconds')).toBeLessThan((Date.now() - storedAt) / 1000 - 1.9);
});

test('without an answer of the servers there is no report, and it is not waited for', async () => {
  await append();
  await watch.round();
  expect(await liveReport()).toBeDefined();
  for (const node of [0, 1, 2]) nodes.signal(node, 'SIGSTOP');
  try {
    await eventually(() => nodes.pids.every(isStopped));
    const began = performance.now();
    expect(await watch.reports(200)).toEqual([]);
    expect(performance.now() - began).toBeLessThan(5_000);
  } finally {
    for (const node of [0, 1, 2]) nodes.signal(node, 'SIGCONT');
    await nodes.ready();
  }
});

test('what was removed while PostgreSQL did not answer is no gap for the next process', async () => {
  await append();
  await watch.round();
  positions.isUnavailable = true;
  // More than half of the stream.
  for (let n = 0; n < 40; n += 1) await append(900_000);
  await confirmAll();
  const name = `${settings.name}-live`;
  await eventually(async () => {
    await watch.round();
    return (await client.link!.laneState(name)).bytes === 0;
  }, 60_000);
  // A busy machine may have published some frames twice.
  const { last } = await client.link!.laneState(name);
  positions.isUnavailable = false;
  watch = newWatch();
  await watch.round();
  expect(events.filter(({ event }) => event === 'stream_lost')).toEqual([]);
  expect(positions.rows.get(name)!.floor).toBe(String(last));
  // Frames that ClickHouse does not have are missed as before.
  await append();
  await append();
  await client.link!.purge(name, last + 1);
  watch = newWatch();
  await watch.round();
  expect(events.filter(({ event }) => event === 'stream_lost')).toMatchObject([
    { kind: 'gap', from: last + 1, to: last + 1 },
  ]);
});

test('a stream that an earlier version made gets frames as that version reads them, a new one gets deflated ones', async () => {
  const name = `${settings.name}-live`;
  const appended = async (): Promise<number> => {
    lastOrder += 1n;
    await writer.append([{ lane: live, order: lastOrder, rows: 1, parts: [Buffer.alloc(5_000)], device: 1 }]);
    const { last } = await client.link!.laneState(name);
    return (await client.link!.manager.streams.getMessage(name, { seq: last }))!.data.length;
  };
  expect(await appended()).toBeLessThan(200);
  const { metadata } = (await nodes.manage((manager) => manager.streams.info(name))).config;
  await nodes.manage((manager) => manager.streams.update(name, { metadata: { ...metadata, millrace_format: '1' } }));
  await client.prepareAgain();
  expect(await appended()).toBe(5_040);
  // One that is made again keeps its form: a host of the earlier version may still run.
  await nodes.manage((manager) => manager.streams.delete(name));
  await client.prepareAgain();
  expect(await appended()).toBe(5_040);
});

test('the room of the stream shrinks by what any process appends, and is not known without an answer', async () => {
  expect(watch.room()).toBeUndefined();
  await watch.round();
  const empty = watch.room()!;
  expect(empty).toEqual({ written: 0, left: 64 * mebibyte });
  for (let n = 0; n < 4; n += 1) await append(500_000);
  await watch.round();
  const { written, left } = watch.room()!;
  expect(written).toBeGreaterThanOrEqual(2_000_000);
  expect(left).toBeLessThanOrEqual(64 * mebibyte - 2_000_000);
  await confirmAll();
  await eventually(async () => {
    await watch.round();
    return watch.room()!.left === 64 * mebibyte;
  }, 30_000);
  expect(watch.room()!.written).toBe(written);
});

test('what this process publishes counts at once in what a stream holds, and not twice after the next read', async () => {
  await append(1_000);
  await watch.round();
  const before = watch.roomOf(live)!;
  for (let n = 0; n < 4; n += 1) await append(500_000);
  const { bytes, at } = watch.roomOf(live)!;
  expect(at).toBe(before.at);
  expect(bytes).toBeGreaterThan(before.bytes + 2_000_000);
  await watch.round();
  const read = watch.roomOf(live)!;
  expect(read.at).toBeGreaterThan(before.at);
  // The servers add a little to each message, and a busy machine may publish one twice.
  expect(read.bytes).toBeLessThan(before.bytes + 4_000_000);
  expect(read.bytes).toBeGreaterThanOrEqual(bytes);
});

test('a limit that an operator changes at the servers counts, and none is no full stream', async () => {
  await append(1_000);
  for (const [max_bytes, limit] of [
    [128 * mebibyte, 128 * mebibyte],
    [-1, Number.MAX_SAFE_INTEGER],
  ] as const) {
    await nodes.manage((manager) => manager.streams.update(`${settings.name}-live`, { max_bytes }));
    await watch.round();
    expect(metricOf('stream_bytes_max')).toBe(limit);
    expect(watch.roomOf(live)).toMatchObject({ bytesMax: limit });
  }
});

test('a host without the lease reports the streams, and does not ask PostgreSQL in each round', async () => {
  positions.holder = 'another host';
  await append();
  await watch.round();
  const { queries } = positions;
  for (let round = 0; round < 3; round += 1) await watch.round();
  expect(positions.queries).toBe(queries);
  expect(await liveReport()).toMatchObject({ orderShipped: String(first - 1) });
});

test('a process that was stopped for longer than its lease does not set the position back', async () => {
  const name = `${settings.name}-live`;
  await append();
  await confirmAll();
  const other = newWatch();
  let last = 0;
  positions.onLease = async () => {
    positions.onLease = undefined;
    await append();
    await confirmAll();
    await eventually(async () => {
      await other.round();
      const state = await client.link!.laneState(name);
      ({ last } = state);
      return state.first === last + 1;
    }, 30_000);
  };
  await watch.round();
  expect(positions.rows.get(name)).toMatchObject({ floor: String(last), last: String(last) });
  await newWatch().round();
  expect(events.filter(({ event }) => event === 'stream_lost')).toEqual([]);
});

test('frames that took the numbers of stored ones, which the servers had lost, stay until they are stored', async () => {
  const name = `${settings.name}-live`;
  for (let n = 0; n < 3; n += 1) await append();
  const { last } = await client.link!.laneState(name);
  positions.rows.set(name, { ...positions.rows.get(name)!, floor: String(first + 1), last: String(last) });
  for (let round = 0; round < 2; round += 1) await watch.round();
  expect(await client.link!.laneState(name)).toMatchObject({ first, last });
  await confirmAll();
  await eventually(async () => {
    await watch.round();
    return (await client.link!.laneState(name)).first === last + 1;
  }, 30_000);
});

/** A writer that answers soon. */
function impatientWriter(): StreamWriter {
  const local = { append: () => Promise.reject(new Error('not used')) };
  const deps = { client, clock: systemClock, log, metrics: new Metrics(), local };
  return new StreamWriter({ ...deps, settings: { ...settings, ackMsMax: 300 } });
}

test('what another stream takes in the place of a removed one is not acknowledged', async () => {
  const name = `${settings.name}-live`;
  await append();
  await nodes.manage(async (manager) => {
    await manager.streams.delete(name);
    await manager.streams.add({ name: 'other', subjects: [`${settings.name}.live.*`] });
  });
  writer.close();
  writer = impatientWriter();
  await expect(append()).rejects.toMatchObject({
    reason: 'stream_away',
    message: expect.stringMatching(/the subjects of the stream watch\d+-live belong to the stream other: remove other/),
  });
  // A stream that cannot be made again is an event, and not one of each round.
  for (let round = 0; round < 3; round += 1) await watch.round();
  const logged = events.map(({ event }) => event).filter((event) => /stream_(missing|not_ready)/.test(event));
  expect(logged).toEqual(['stream_missing', 'stream_not_ready']);
  await nodes.manage((manager) => manager.streams.delete('other'));
  await client.prepareAgain();
});

test('streams that were changed meanwhile, and keep the promise no more, accept nothing until they are repaired', async () => {
  const name = `${settings.name}-live`;
  await append();
  await client.checkAgain();
  expect(writer.refusal()).toBeUndefined();
  const changed = async (change: (manager: JetStreamManager) => Promise<unknown>, reason: RegExp) => {
    await nodes.manage(change);
    await client.checkAgain();
    expect(writer.refusal()).toMatchObject({ reason: 'stream_away', message: expect.stringMatching(reason) });
  };
  const repaired = async (change: (manager: JetStreamManager) => Promise<unknown>) => {
    await nodes.manage(change);
    await client.checkAgain();
    expect(writer.refusal()).toBeUndefined();
    await append();
  };
  await changed(({ streams }) => streams.update(name, { discard: DiscardPolicy.Old }), /discards its oldest frames/);
  await repaired(({ streams }) => streams.update(name, { discard: DiscardPolicy.New }));
  const filter_subjects = [`${settings.name}.live.7`, `${settings.name}.live.8`];
  await changed(({ consumers }) => consumers.update(name, 'millrace', { filter_subjects }), /so it may skip frames/);
  // Frames that such a consumer passes over are not stored.
  for (let round = 0; round < 2; round += 1) await watch.round();
  expect(await client.link!.laneState(name)).toMatchObject({ first });
  await repaired(async ({ consumers }) => {
    await consumers.delete(name, 'millrace');
    await watch.round();
  });
  await confirmAll();
});

test('hosts that start at one moment make the streams together', async () => {
  const shared = { ...settings, name: `${settings.name}-shared` };
  const hosts = Array.from({ length: 4 }, (_, host) => {
    const prepare = (link: StreamLink) => prepareStreams(link, shared, { installation: 'watch', copies: [] });
    return new StreamClient(shared, log, `host ${host}`, prepare);
  });
  await Promise.all(hosts.map((host) => host.start()));
  await eventually(() => hosts.every(({ failure }) => failure === undefined), 30_000);
  expect(events.filter(({ reason }) => String(reason).includes('cannot be made'))).toEqual([]);
  await Promise.all(hosts.map((host) => host.close()));
  await nodes.manage(async (manager) => {
    for (const lane of ['live', 'late']) await manager.streams.delete(`${shared.name}-${lane}`);
  });
});

test('the first frame that a stream made again by hand takes is not acknowledged when it has one replica', async () => {
  const name = `${settings.name}-live`;
  for (let n = 0; n < 3; n += 1) await append();
  const { config } = await nodes.manage((manager) => manager.streams.info(name));
  await nodes.manage(async (manager) => {
    await manager.streams.delete(name);
    await manager.streams.add({ ...config, num_replicas: 1, first_seq: 0 });
  });
  const refusal = { reason: 'stream_away', message: expect.stringMatching(/has 1 replica/) };
  await expect(append()).rejects.toMatchObject(refusal);
  expect(writer.refusal()).toMatchObject(refusal);
  await nodes.manage((manager) => manager.streams.delete(name));
  await watch.round();
  await client.checkAgain();
  await append();
  await confirmAll();
});

test('a stream that was made again by hand, and that no consumer can be made for, accepts nothing', async () => {
  const name = `${settings.name}-live`;
  await append();
  const { config } = await nodes.manage((manager) => manager.streams.info(name));
  const unsafe = { num_replicas: 1, storage: StorageType.Memory };
  const { metadata: _, ...unknown } = config;
  for (const [made, reason] of [
    [{ ...config, ...unsafe }, /has 1 replica/],
    [unknown, /was not made by Millrace/],
  ] as const) {
    await nodes.manage(async (manager) => {
      await manager.streams.delete(name);
      await manager.streams.add(made);
    });
    await watch.round();
    expect(writer.refusal()).toMatchObject({ reason: 'stream_away', message: expect.stringMatching(reason) });
    // A check of what is there finds less than the making of what is missing.
    await client.checkAgain();
    expect(writer.refusal()).toBeDefined();
  }
  await nodes.manage((manager) => manager.streams.delete(name));
  await watch.round();
  expect(writer.refusal()).toBeUndefined();
  await append();
  await confirmAll();
});
