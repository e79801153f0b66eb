/** What a report says about rows that wait for shards. */
import { expect, test } from 'vitest';
import { SimDisk } from '../../test/crash/sim-disk.ts';
import { silentLog as log } from '../../test/harness/silent-log.ts';
import { systemClock } from '../base/clock.ts';
import { openJournal } from '../journal/open-journal.ts';
import { reportOf } from './journal-report.ts';

test('rows that were divided by an earlier map of shards may be of any device', async () => {
  const journal = await openJournal({ dir: '/j', disk: new SimDisk(), log, segmentBytes: 64 * 1024 });
  const report = (mapVersion: number) => reportOf(journal, 1, systemClock, mapVersion);
  expect(report(0)).toMatchObject({ orderHeld: null, shardsBehind: [] });
  await journal.shardBacklog.add(1, { payloads: [Buffer.from('a')], rows: 1, orderMin: 7n, mapVersion: 4 });
  expect(report(4)).toMatchObject({ orderHeld: '7', shardsBehind: [1] });
  expect(report(5).shardsBehind).toBe(undefined);
  await journal.shardBacklog.add(1, { payloads: [Buffer.from('b')], rows: 1, orderMin: 8n, mapVersion: 5 });
  expect(report(5).shardsBehind).toBe(undefined);
});
