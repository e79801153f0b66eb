/** For tests: fills a stream of Millrace, as other hosts do while ClickHouse takes nothing. */
import { randomBytes } from 'node:crypto';
import { jetstream } from '@nats-io/jetstream';
import { type Lane, laneNames } from '../../src/journal/journal.ts';
import { plainStreamFrame } from '../../src/stream/stream-frame.ts';
import { keyOf } from '../../src/telemetry/keys.ts';
import { Rows } from '../../src/telemetry/rows.ts';
import { Kind } from '../../src/value/typed.ts';
import type { NatsCluster } from './nats-cluster.ts';

/** Publishes frames with rows of a device that does not exist, until the stream takes not even a small one. */
export async function fillStream(nodes: NatsCluster, lane: Lane, ts: number): Promise<void> {
  const connection = await nodes.connect();
  const client = jetstream(connection);
  let order = BigInt(Date.now()) << 20n;
  try {
    for (const bytes of [500_000, 60_000, 300]) {
      const rows = new Rows();
      const text = randomBytes(bytes).toString('base64');
      rows.addValue(keyOf('fill')!, { kind: Kind.string, num: 0, int: '0', text });
      rows.endRecord(1_000_000, ts);
      for (let isFull = false; !isFull; ) {
        order += 1n;
        const parts = rows.encode({ order, micros: 0, firstPlace: 0 });
        try {
          await client.publish(
            `millrace.${laneNames[lane]}.0`,
            plainStreamFrame({ lane, order, rows: 1, parts }, Date.now()),
          );
        } catch (error) {
          if (!/maximum bytes exceeded/.test(String(error))) throw error;
          isFull = true;
        }
      }
    }
  } finally {
    await connection.close();
  }
}
