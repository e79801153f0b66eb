/**
 * A node that reaches no other one while its clients still reach it: they leave it for a node of the majority, to
 * publish and to read.
 */
import { afterAll, beforeAll, expect, test } from 'vitest';
import { systemClock } from '../../src/base/clock.ts';
import { createLog } from '../../src/base/log.ts';
import { Metrics } from '../../src/base/metrics/metrics.ts';
import { loadConfig } from '../../src/base/settings/config.ts';
import { live } from '../../src/journal/journal.ts';
import { LaneReader } from '../../src/stream/lane-reader.ts';
import { prepareStreams } from '../../src/stream/prepare-streams.ts';
import { StreamClient } from '../../src/stream/stream-client.ts';
import { StreamWriter } from '../../src/stream/stream-writer.ts';
import { eventually } from '../harness/api.ts';
import { NatsCluster } from '../harness/nats-cluster.ts';

const log = createLog('error', 'test');
let nodes: NatsCluster;

beforeAll(async () => {
  nodes = await NatsCluster.start({ linked: true });
});

afterAll(() => nodes?.stop());

test('frames are acknowledged and given while the node of this process is cut off from the others', async () => {
  const sizes = { bytesMax: 64 * 1024 ** 2, redeliverSeconds: 4 };
  const settings = { ...loadConfig({}).stream, ...sizes, url: nodes.url, name: 'cut' };
  const client = new StreamClient(settings, log, 'test', (link) =>
    prepareStreams(link, settings, { installation: 'cut', copies: [] }),
  );
  const metrics = new Metrics();
  const local = { append: () => Promise.reject(new Error('not used')) };
  const writer = new StreamWriter({ client, settings, clock: systemClock, log, metrics, local });
  const quarantine = { addGap: () => Promise.reject(new Error('not used')) };
  const reader = new LaneReader(live, { client, settings, log, metrics, quarantine, onFrame: () => {} });
  let order = 0n;
  const append = (text: string) => {
    order += 1n;
    return writer.append([{ lane: live, order, rows: 1, parts: [Buffer.from(text)], device: 1 }]);
  };
  const given = () => reader.next(1, 1_000)?.payloads.map(String).join();
  await client.start();
  try {
    reader.start();
    await append('before');
    await eventually(() => given() === 'before', 20_000);
    const cutOff = nodes.nodeAt(client.link!.connection.getServer());
    nodes.cut(cutOff);
    const accepted = async (text: string) => {
      try {
        await append(text);
        return true;
      } catch {
        return false;
      }
    };
    await eventually(() => accepted('while cut off'), 40_000);
    // A frame that the cut off node took for this reader is given again after `redeliverSeconds`. A frame that was
    // refused may be in the stream as well.
    await eventually(() => given() === 'while cut off', 20_000);
    expect(nodes.nodeAt(client.link!.connection.getServer())).not.toBe(cutOff);
    nodes.join(cutOff);
    // The servers may choose another leader.
    await eventually(() => accepted('joined'), 40_000);
    await eventually(async () => given() === 'joined', 20_000);
  } finally {
    writer.close();
    await reader.close();
    await client.close();
  }
});

test('telemetry is refused while no majority answers, also when none was published before', async () => {
  const settings = {
    ...loadConfig({}).stream,
    url: nodes.url,
    name: 'idle',
    bytesMax: 64 * 1024 ** 2,
    ackMsMax: 1_000,
  };
  const client = new StreamClient(settings, log, 'test', (link) =>
    prepareStreams(link, settings, { installation: 'idle', copies: [] }),
  );
  const metrics = new Metrics();
  const local = { append: () => Promise.reject(new Error('not used')) };
  const writer = new StreamWriter({ client, settings, clock: systemClock, log, metrics, local });
  const quarantine = { addGap: () => Promise.reject(new Error('not used')) };
  const reader = new LaneReader(live, { client, settings, log, metrics, quarantine, onFrame: () => {} });
  await client.start();
  try {
    reader.start();
    expect(writer.refusal()).toBeUndefined();
    for (const node of [0, 1, 2]) nodes.signal(node, 'SIGSTOP');
    await eventually(() => writer.refusal()?.reason === 'stream_away', 40_000);
    for (const node of [0, 1, 2]) nodes.signal(node, 'SIGCONT');
    await eventually(() => writer.refusal() === undefined, 40_000);
  } finally {
    for (const node of [0, 1, 2]) nodes.signal(node, 'SIGCONT');
    writer.close();
    await reader.close();
    await client.close();
  }
});
