/** The records of damaged ranges. */
import { expect, test } from 'vitest';
import { SimDisk } from '../../test/crash/sim-disk.ts';
import type { Log } from '../base/log.ts';
import { Metrics } from '../base/metrics/metrics.ts';
import { Damage } from './damage.ts';
import type { Quarantine } from './quarantine.ts';
import type { Segment } from './waiting-segment.ts';

test('a gap that both lanes find at the same time is counted and logged once', async () => {
  const disk = new SimDisk();
  const file = await disk.open('/segment', 'write');
  await file.write([Buffer.alloc(4096)], 0);
  await file.close();
  const events: string[] = [];
  const log: Log = { debug() {}, info() {}, warn() {}, error: (event) => void events.push(event) };
  const metrics = new Metrics();
  const quarantine = { addGap: async () => 'added' } as unknown as Quarantine;
  const damage = new Damage(disk, log, quarantine, metrics);
  const segment = { epoch: 'e', seq: 1, path: '/segment', gaps: [] } as unknown as Segment;
  const gap = { from: 512, to: 1024, kind: 'gap' } as const;
  await Promise.all([damage.gap(segment, gap), damage.gap(segment, gap)]);
  expect([segment.gaps, events]).toEqual([[gap], ['journal_corrupt']]);
  await damage.gap(segment, { ...gap, from: 2048, to: 2560 });
  expect(events).toHaveLength(2);
});
