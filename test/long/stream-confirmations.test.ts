/** Servers that were frozen: confirmations that arrive late, and answers about what was made meanwhile. */

import { AckPolicy, jetstream, jetstreamManager } from '@nats-io/jetstream';
import { connect } from '@nats-io/transport-node';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { createLog } from '../../src/base/log.ts';
import { loadConfig } from '../../src/base/settings/config.ts';
import { prepareStreams } from '../../src/stream/prepare-streams.ts';
import { StreamClient } from '../../src/stream/stream-client.ts';
import { found, StreamLink, streamNotFound } from '../../src/stream/stream-link.ts';
import { eventually } from '../harness/api.ts';
import { NatsCluster } from '../harness/nats-cluster.ts';

let nodes: NatsCluster;

beforeAll(async () => {
  nodes = await NatsCluster.start();
});

afterAll(() => nodes?.stop());

test('a confirmation that a frozen server passes on when its stream was made again confirms no new frame', async () => {
  const settings = { ...loadConfig({}).stream, url: nodes.url, name: 'remade', bytesMax: 64 * 1024 ** 2 };
  const log = createLog('error', 'test');
  const client = new StreamClient(settings, log, 'test', (link) =>
    prepareStreams(link, settings, { installation: 'remade', copies: [] }),
  );
  await client.start();
  const streamLeader = await nodes.leaderOf('remade-live');
  const to = (node: number) =>
    connect({ servers: nodes.url.split(',')[node]!, ignoreClusterUpdates: true, reconnect: false });
  const connection = await to(streamLeader);
  const js = jetstream(connection);
  const publish = () => js.publish('remade.live.0', 'frame');
  const info = () => eventually(() => client.link!.consumerInfo('remade-live'), 30_000);
  /** Repeats the call while the servers choose leaders. */
  const done = (call: () => Promise<unknown>) =>
    eventually(
      () =>
        call().then(
          () => true,
          () => false,
        ),
      60_000,
    );
  try {
    await publish();
    // A server that is neither of the leaders, so that the others go on at once.
    const leaders = [streamLeader, Number((await info()).cluster!.leader!.slice(1))];
    const node = [0, 1, 2].find((each) => !leaders.includes(each))!;
    const holder = await to(node);
    const held = await (await jetstream(holder).consumers.get('remade-live', 'millrace')).next({ expires: 5_000 });
    nodes.signal(node, 'SIGSTOP');
    // The confirmation lies in the buffers of the frozen server.
    held!.ack();
    // An earlier call whose answer was lost may have removed the stream.
    const remove = () => nodes.manage(({ streams }) => found(streams.delete('remade-live'), streamNotFound), 5_000);
    await done(remove);
    await done(() => client.prepareAgain());
    await done(publish);
    const next = async () => (await js.consumers.get('remade-live', 'millrace')).next({ expires: 5_000 });
    const taken = await eventually(next, 60_000);
    nodes.signal(node, 'SIGCONT');
    // A server answers what it gets after the confirmation when the confirmation was passed on.
    await holder.flush();
    await connection.flush();
    await nodes.ready();
    const { num_pending, num_ack_pending, ack_floor } = await info();
    // A publish whose answer was lost was repeated.
    const { first, last } = await client.link!.laneState('remade-live');
    expect(num_pending + num_ack_pending).toBe(last - first + 1);
    expect(ack_floor.stream_seq).toBeLessThan(taken.seq);
    await holder.close();
  } finally {
    await connection.close();
    await client.close();
  }
}, 120_000);

test('a server that was frozen does not answer for the leader of what was made meanwhile', async () => {
  const pages = nodes.monitorUrls.split(',');
  const states = await Promise.all(pages.map(async (page) => (await fetch(`${page}/jsz`)).json()));
  const { leader } = (states[0] as { meta_cluster: { leader: string } }).meta_cluster;
  const frozen = [0, 1, 2].find((node) => `n${node}` !== leader)!;
  const url = nodes.url.split(',').filter((_, node) => node !== frozen);
  nodes.signal(frozen, 'SIGSTOP');
  const settings = { ...loadConfig({}).stream, url: url.join(',') };
  const link = await StreamLink.open(settings, 'test');
  try {
    const manager = await jetstreamManager(link.connection, { checkAPI: false, timeout: 2_000 });
    const names: string[] = [];
    // What the frozen server would lead is not made: the servers wait for that server.
    for (let i = 0; names.length < 8; i += 1) {
      const name = `meanwhile${i}`;
      try {
        await manager.streams.add({ name, subjects: [name], num_replicas: 3 });
        await manager.consumers.add(name, { durable_name: 'millrace', ack_policy: AckPolicy.Explicit });
        await manager.jetstream().publish(name, 'frame', { timeout: 2_000 });
        names.push(name);
      } catch {}
    }
    nodes.signal(frozen, 'SIGCONT');
    const isFollowed = async (name: string) =>
      (await manager.streams.info(name)).cluster?.replicas?.every(({ current }) => current) === true;
    const counts = new Set<number>();
    const ask = () =>
      Promise.all(
        names.map(async (name) => {
          const [consumer, { last, first }] = await Promise.all([link.consumerState(name), link.laneState(name)]);
          return [consumer.waiting, last - first + 1];
        }),
      );
    for (let areFollowed = false; !areFollowed; ) {
      const asked = await Promise.all([ask(), ask(), ask(), ask()]);
      for (const count of asked.flat(2)) counts.add(count);
      const followed = await Promise.all(names.map((name) => isFollowed(name).catch(() => false)));
      areFollowed = followed.every((is) => is);
    }
    expect([...counts]).toEqual([1]);
  } finally {
    nodes.signal(frozen, 'SIGCONT');
    await link.close();
  }
}, 120_000);
