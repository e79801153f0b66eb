/** What an insert does about earlier tries of itself; the faults of stores are in test/crash/ship-faults.test.ts. */
import { expect, test } from 'vitest';
import { silentLog as log } from '../../test/harness/clickhouse-server.ts';
import { systemClock as clock } from '../base/clock.ts';
import { Metrics } from '../base/metrics/metrics.ts';
import { Inserter, type InserterDeps } from './insert.ts';

test('rows that the client sent twice count as stored when the first try has ended', async () => {
  const asked: string[] = [];
  const clickhouse = {
    insertBlocks: async () => ({ repeated: true }),
    // At the first question it runs.
    endInserts: async (mark: string) => asked.push(mark) > 1,
  };
  const parts = { clickhouse, clock, log, metrics: new Metrics(), timeoutMs: 30_000, sleep: async () => {} };
  const { signal } = new AbortController();
  const inserter = new Inserter({
    ...parts,
    signal,
    once: false,
    parallelMax: 1,
    patient: false,
  } as unknown as InserterDeps);
  expect(await inserter.insert([new Uint8Array(8)])).toMatchObject({ complete: true, refused: [] });
  expect(asked).toHaveLength(2);
});
