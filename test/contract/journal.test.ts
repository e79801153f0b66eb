/**
 * One contract for both implementations of the seam (`src/journal/seam.ts`): the journal on the disk of a host, and the
 * replicated stream on three real nodes.
 */
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, afterEach, beforeAll, describe, expect, test } from 'vitest';
import { systemClock } from '../../src/base/clock.ts';
import { createLog } from '../../src/base/log.ts';
import { Metrics } from '../../src/base/metrics/metrics.ts';
import { loadConfig } from '../../src/base/settings/config.ts';
import type { Journal, JournalFrame, Lane, ShipUnit } from '../../src/journal/journal.ts';
import { openJournal } from '../../src/journal/open-journal.ts';
import type { GivesUnits, TakesFrames } from '../../src/journal/seam.ts';
import type { Queries } from '../../src/postgres/client.ts';
import { type OpenedStream, openStream } from '../../src/stream/open-stream.ts';
import { eventually } from '../harness/api.ts';
import { NatsCluster } from '../harness/nats-cluster.ts';

const log = createLog('warn', 'test');
const segmentBytes = 4 * 1024 * 1024;
const limits = { rowsMax: 1_000, bytesMax: 1_000_000 };

interface Opened {
  seam: TakesFrames & GivesUnits;
  close(): Promise<void>;
}

interface Implementation {
  open(): Promise<Opened>;
  stop(): Promise<void>;
}

let cluster: NatsCluster;

beforeAll(async () => {
  cluster = await NatsCluster.start();
});

afterAll(() => cluster?.stop());

function openLocal(dir: string): Promise<Journal> {
  return openJournal({ dir, log, segmentBytes, locked: true });
}

function localJournal(): Implementation {
  const home = mkdtempSync(join(tmpdir(), 'millrace-contract-'));
  return {
    open: async () => {
      const journal = await openLocal(join(home, 'journal'));
      return { seam: journal, close: () => journal.close() };
    },
    stop: async () => rmSync(home, { recursive: true, force: true }),
  };
}

let streams = 0;

/** PostgreSQL is not needed to take, give and confirm frames. */
const noPostgres = { query: () => Promise.reject(new Error('not asked for')) } as unknown as Queries;

function replicatedStream(): Implementation {
  const home = mkdtempSync(join(tmpdir(), 'millrace-contract-'));
  streams += 1;
  const settings = { ...loadConfig({}).stream, url: cluster.url, name: `contract${streams}`, bytesMax: 64 * 1024 ** 2 };
  let openings = 0;
  return {
    open: async () => {
      // Each opening acts as another host: nothing on a disk connects it with the earlier openings.
      const journal = await openLocal(join(home, `host-${(openings += 1)}`));
      const stream: OpenedStream = await openStream({
        settings,
        installation: 'contract',
        name: 'test',
        journal,
        postgres: noPostgres,
        clock: systemClock,
        log,
        metrics: new Metrics(),
        isLeader: () => false,
        isAccepting: true,
        onFrame: () => {},
        reopenDeletes: async () => {},
      });
      const close = async () => {
        await stream.close();
        await journal.close();
      };
      return { seam: stream.journal, close };
    },
    stop: async () => {
      await cluster.manage(async (manager) => {
        for (const lane of ['live', 'late']) await manager.streams.delete(`${settings.name}-${lane}`);
      });
      rmSync(home, { recursive: true, force: true });
    },
  };
}

let lastOrder = BigInt(Date.now()) << 20n;

function frame(text: string, lane: Lane = 0): JournalFrame {
  lastOrder += 1n;
  return { lane, order: lastOrder, rows: 1, parts: [Buffer.from(text.slice(0, 2)), Buffer.from(text.slice(2))] };
}

const implementations: [string, () => Implementation][] = [
  ['the journal on the disk', localJournal],
  ['the replicated stream', replicatedStream],
];

describe.each(implementations)('%s', (_name, make) => {
  let made: Implementation | undefined;
  let opened: Opened | undefined;

  afterEach(async () => {
    await opened?.close();
    await made?.stop();
    made = opened = undefined;
  });

  async function begin(): Promise<Opened['seam']> {
    made ??= make();
    opened = await made.open();
    return opened.seam;
  }

  async function beginAgain(): Promise<Opened['seam']> {
    await opened?.close();
    opened = undefined;
    return begin();
  }

  /** Takes units until they hold this number of frames. */
  async function take(seam: GivesUnits, frames: number, lane: Lane = 0): Promise<ShipUnit[]> {
    const units: ShipUnit[] = [];
    const count = () => units.reduce((sum, unit) => sum + unit.frames, 0);
    await eventually(async () => {
      const unit = seam.rowsUntaken(lane) > 0 ? await seam.next(lane, limits) : undefined;
      if (unit) units.push(unit);
      return count() >= frames;
    }, 20_000);
    return units;
  }

  const texts = (units: ShipUnit[]) => units.flatMap(({ payloads }) => payloads.map(String)).sort();

  test('gives what was appended, whole and with its orders', async () => {
    const seam = await begin();
    const first = [frame('one'), frame('two')];
    await seam.append(first);
    await seam.append([frame('three')]);
    const units = await take(seam, 3);
    expect(texts(units)).toEqual(['one', 'three', 'two']);
    expect(units.flatMap(({ orders }) => orders).sort()).toEqual([lastOrder - 2n, lastOrder - 1n, lastOrder]);
    for (const { orders, orderMin, orderMax, rows, frames } of units) {
      expect([orderMin, orderMax]).toEqual([orders[0], orders.at(-1)]);
      expect(orders).toEqual([...orders].sort());
      expect(rows).toBe(frames);
    }
  });

  test('a lane does not wait for the other one', async () => {
    const seam = await begin();
    await seam.append([frame('now', 0), frame('old', 1)]);
    const [live] = await take(seam, 1, 0);
    await seam.confirm(live!);
    expect(seam.rowsWaiting(0)).toBe(0);
    const [late] = await take(seam, 1, 1);
    expect([texts([live!]), texts([late!])]).toEqual([['now'], ['old']]);
    expect(seam.rowsWaiting(1)).toBe(1);
    expect(seam.laneShipped(1)).toBeLessThan(late!.orderMin);
    await seam.confirm(late!);
    expect(seam.laneShipped(1)).toBeGreaterThanOrEqual(late!.orderMax);
  });

  test('what is not confirmed is given again by a later opening, what is confirmed never', async () => {
    const seam = await begin();
    await seam.append([frame('stored')]);
    const [stored] = await take(seam, 1);
    await seam.confirm(stored!);
    await seam.append([frame('waits')]);
    await take(seam, 1);
    await seam.append([frame('unseen')]);
    const again = await beginAgain();
    const units = await take(again, 2);
    expect(texts(units)).toEqual(['unseen', 'waits']);
    for (const unit of units) await again.confirm(unit);
    const last = await beginAgain();
    await last.append([frame('sentinel')]);
    expect(texts(await take(last, 1))).toEqual(['sentinel']);
  });

  test('units may be confirmed in another order than they were taken', async () => {
    const seam = await begin();
    await seam.append([frame('a')]);
    const first = await take(seam, 1);
    await seam.append([frame('b')]);
    const second = await take(seam, 1);
    await seam.confirm(second[0]!);
    expect(seam.laneShipped(0)).toBeLessThan(first[0]!.orderMin);
    const again = await beginAgain();
    const units = await take(again, 1);
    // The journal's position stays before the first unit; the stream gives only what is missing.
    expect(texts(units)).toContain('a');
  });

  test('an insert that ends after the close may confirm its unit', async () => {
    const seam = await begin();
    await seam.append([frame('late')]);
    const [unit] = await take(seam, 1);
    await opened!.close();
    opened = undefined;
    await seam.confirm(unit!);
  });

  test('counts rows and bytes until they are confirmed', async () => {
    const seam = await begin();
    expect([seam.rowsWaiting(0), seam.bytesWaiting(0), seam.oldestWaitingAt(0)]).toEqual([0, 0, undefined]);
    await seam.append([frame('four')]);
    const [unit] = await take(seam, 1);
    expect([seam.rowsWaiting(0), seam.rowsUntaken(0), seam.bytesWaiting(0)]).toEqual([1, 0, 4]);
    expect(Math.abs(Date.now() - seam.oldestWaitingAt(0)!)).toBeLessThan(30_000);
    await seam.confirm(unit!);
    expect([seam.rowsWaiting(0), seam.bytesWaiting(0), seam.oldestWaitingAt(0)]).toEqual([0, 0, undefined]);
  });
});
