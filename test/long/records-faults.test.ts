/**
 * Latest values that are records, over kills of the embedded ClickHouse while records are inserted and merged, and of
 * all processes of a host at once. Nothing that was acknowledged is missing afterwards.
 */
import { randomInt } from 'node:crypto';
import { setTimeout as sleep } from 'node:timers/promises';
import { afterEach, test } from 'vitest';
import { eventually } from '../harness/api.ts';
import { embeddedAddress } from '../harness/clickhouse-queries.ts';
import { type Engine, startEngine } from '../harness/engine.ts';
import {
  devicesInRecords,
  expectHistory,
  type LatestRead,
  RecordFleet,
  whileSending,
} from '../harness/record-fleet.ts';

/** Enough for records. */
const children = 1_500;
const pauseMs = 400;
let engine: Engine | undefined;

afterEach(async () => {
  await engine?.destroyAtOnce();
  engine = undefined;
});

async function start(env: Record<string, string> = {}): Promise<{ host: Engine; fleets: RecordFleet[] }> {
  engine = await startEngine({ workers: 2, env });
  const host = engine;
  const fleets = [
    await RecordFleet.make(() => [host], 'at its time', { count: children, parts: 3 }),
    await RecordFleet.make(() => [host], 'at server time', { count: children }),
  ];
  return { host, fleets };
}

/** A merge of all parts of the latest values; a kill ends it. */
function mergeLatest(host: Engine): void {
  void host.clickhouseCommand('OPTIMIZE TABLE latest FINAL').catch(() => undefined);
}

/** Waits until records are inserted: rounds that wait together after a kill become rows. */
async function insertsRecords(host: Engine): Promise<void> {
  await eventually(async () => (await devicesInRecords(embeddedAddress(host.dataDir))) > children / 2, 60_000);
}

async function expectAll(host: Engine, fleets: readonly RecordFleet[], ways?: readonly LatestRead[]): Promise<void> {
  for (const fleet of fleets) await fleet.expectNewest(ways);
  for (const fleet of fleets) await expectHistory(fleet, [embeddedAddress(host.dataDir)]);
}

for (const level of ['journal', 'store']) {
  test(`INGEST_ACK=${level}: kills of ClickHouse while records are inserted and merged lose nothing`, async () => {
    const { host, fleets } = await start({ INGEST_ACK: level });
    await whileSending(fleets, pauseMs, async () => {
      for (let kill = 0; kill < 4; kill += 1) {
        await insertsRecords(host);
        await sleep(randomInt(500));
        mergeLatest(host);
        await sleep(randomInt(200));
        await eventually(() => host.kill('clickhouse'), 30_000);
      }
    });
    await expectAll(host, fleets, ['all']);
  });
}

test('kills of all processes of a host while records are inserted and merged lose nothing', async () => {
  const { host, fleets } = await start();
  await whileSending(fleets, pauseMs, async () => {
    for (let kill = 0; kill < 2; kill += 1) {
      await insertsRecords(host);
      await sleep(randomInt(1_000));
      mergeLatest(host);
      await sleep(randomInt(200));
      await host.killAll();
      await host.start();
    }
  });
  await expectAll(host, fleets);
});
