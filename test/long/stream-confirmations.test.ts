/** Confirmations of frames that arrive late. */

import { jetstream } from '@nats-io/jetstream';
import { connect } from '@nats-io/transport-node';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { createLog } from '../../src/base/log.ts';
import { loadConfig } from '../../src/base/settings/config.ts';
import { prepareStreams } from '../../src/stream/prepare-streams.ts';
import { StreamClient } from '../../src/stream/stream-client.ts';
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
  const info = () => nodes.manage((manager) => manager.consumers.info('remade-live', 'millrace'));
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
    await done(() => nodes.manage((manager) => manager.streams.delete('remade-live'), 5_000));
    await done(() => client.prepareAgain());
    await done(publish);
    const taken = await (await js.consumers.get('remade-live', 'millrace')).next({ expires: 5_000 });
    nodes.signal(node, 'SIGCONT');
    // A server answers what it gets after the confirmation when the confirmation was passed on.
    await holder.flush();
    await connection.flush();
    await nodes.ready();
    const { num_pending, num_ack_pending, ack_floor } = await info();
    expect(num_pending + num_ack_pending).toBe(1);
    expect(ack_floor.stream_seq).toBeLessThan(taken!.seq);
    await holder.close();
  } finally {
    await connection.close();
    await client.close();
  }
}, 120_000);
