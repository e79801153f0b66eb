/** The journal on a disk that loses, tears, refuses and lies (docs/durability.md#what-an-acknowledgement-means). */
import { basename } from 'node:path';
import { crc32 } from 'node:zlib';
import fc from 'fast-check';
import { expect, test, vi } from 'vitest';
import { StartError } from '../../src/base/errors.ts';
import { inspectJournal, readSegment } from '../../src/journal/inspect.ts';
import { JournalError, type Lane } from '../../src/journal/journal.ts';
import { listQuarantine } from '../../src/journal/quarantine.ts';
import { encodeFrameHead, encodeSegmentHeader, saltSeed, segmentHeaderBytes } from '../../src/journal/segment.ts';
import { Random } from '../harness/random.ts';
import { crashOnce, failedWriteLosesNothing, powerLossLosesNothing } from './journal-crash.ts';
import {
  append,
  appendRandom,
  checkRecovered,
  dir,
  frameOf,
  type Ledger,
  newLedger,
  open,
  ship,
  shipAll,
  shipAllOf,
} from './journal-model.ts';
import { SimDisk } from './sim-disk.ts';

test('power loss at every write, sync and rename loses nothing that was acknowledged', async () => {
  let boundary = 1;
  for (; await crashOnce(5, boundary, 60); boundary += 1);
  expect(boundary).toBeGreaterThan(100);
}, 60_000);

test('power loss at random places of random loads loses nothing that was acknowledged', async () => {
  await powerLossLosesNothing({ numRuns: 60, seed: 42 });
}, 60_000);

test('a failed write and a power loss together lose nothing that was acknowledged', async () => {
  await failedWriteLosesNothing({ numRuns: 60, seed: 7 });
}, 60_000);

/** A journal with acknowledged frames in two or more segments, closed by a crash of the process. */
async function filled(seed: number, appends: number): Promise<{ disk: SimDisk; ledger: Ledger }> {
  const disk = new SimDisk();
  const ledger = newLedger();
  const journal = await open(disk);
  const random = new Random(seed);
  for (let i = 0; i < appends; i += 1) await appendRandom(journal, ledger, random);
  return { disk: disk.crash(undefined), ledger };
}

function segmentPaths(disk: SimDisk): string[] {
  const number = (path: string) => Number(/-(\d+)\.seg$/.exec(path)![1]);
  return disk
    .paths()
    .filter((path) => path.endsWith('.seg'))
    .sort((a, b) => number(a) - number(b));
}

test('a flipped bit in a full segment costs one frame, is quarantined and reported', async () => {
  await fc.assert(
    fc.asyncProperty(fc.integer({ min: 1, max: 1e6 }), fc.integer({ min: 8192, max: 16_000 }), async (seed, at) => {
      const { disk, ledger } = await filled(seed, 30);
      const path = segmentPaths(disk)[1]!;
      disk.content(path)[at]! ^= 1 << (seed % 8);
      const journal = await open(disk);
      const all = await shipAll(journal, ledger);
      const seen = new Set([...all[0], ...all[1]]);
      const lost = [...ledger.acked].filter((order) => !seen.has(order));
      expect(lost.length).toBeLessThanOrEqual(1);
      expect(journal.empty).toBe(true);
      // A flip in the padding or the link harms no frame; any other damage is kept and reported.
      if (lost.length > 0) {
        expect(journal.degraded).toBe(true);
        expect((await listQuarantine(dir, disk)).length).toBe(1);
      }
    }),
    { numRuns: 60, seed: 1 },
  );
}, 60_000);

test('damage that was found before is not reported as new after a restart', async () => {
  const { disk, ledger } = await filled(3, 30);
  disk.content(segmentPaths(disk)[1]!)[10_000]! ^= 4;
  const first = await open(disk);
  while (await ship(first, ledger, 0));
  const second = await open(disk.crash(undefined));
  await shipAll(second, ledger);
  expect((await listQuarantine(dir, disk)).length).toBe(1);
});

test('a bad sector in the header of a segment costs nothing', async () => {
  const { disk, ledger } = await filled(4, 30);
  disk.content(segmentPaths(disk)[0]!).fill(0, 0, 4096);
  const journal = await checkRecovered(disk, ledger);
  expect(journal.degraded).toBe(false);
});

test('a sector that cannot be read costs the frames on it', async () => {
  const { disk, ledger } = await filled(4, 30);
  const bad = segmentPaths(disk)[1];
  disk.fault = (operation, path, from = 0, to = 0) =>
    operation === 'read' && path === bad && from <= 13_000 && to > 13_000 ? 'EIO' : undefined;
  const journal = await open(disk);
  await shipAll(journal, ledger);
  const lost = [...ledger.acked].filter((order) => !ledger.confirmed.has(order));
  expect(lost.length).toBeGreaterThan(0);
  expect(lost.reduce((bytes, order) => bytes + ledger.sent.get(order)!, 0)).toBeLessThan(4096 + 2 * 3000);
  expect(journal.degraded).toBe(true);
});

test('a sector of a header, of the position or of the epoch that cannot be read costs nothing', async () => {
  for (const name of ['1-1.seg', 'position', 'epoch']) {
    for (const sector of [0, 4096]) {
      const { disk, ledger } = await filled(4, 30);
      const first = await open(disk);
      await ship(first, ledger, 0);
      await first.close();
      disk.fault = (operation, path, from = 0, to = 0) =>
        operation === 'read' && path.endsWith(`/${name}`) && from < sector + 4096 && to > sector ? 'EIO' : undefined;
      const journal = await checkRecovered(disk, ledger);
      expect(journal.degraded, `${name} at ${sector}`).toBe(false);
    }
  }
});

test('a segment of which nothing can be read is kept for a human, the rest is given out', async () => {
  const { disk, ledger } = await filled(4, 30);
  const bad = segmentPaths(disk)[1];
  disk.fault = (operation, path) => (operation === 'read' && path === bad ? 'EIO' : undefined);
  const journal = await open(disk);
  await shipAll(journal, ledger);
  expect(journal.degraded).toBe(true);
  expect(disk.paths().filter((path) => path.includes('/quarantine/lost-')).length).toBe(2);
  expect(ledger.confirmed.size).toBeGreaterThan(ledger.acked.size / 2);
});

test('a segment or a position of a later version refuses the start and stays where it is', async () => {
  for (const spoil of ['segment', 'position']) {
    const { disk, ledger } = await filled(4, 30);
    const journal = await open(disk);
    await ship(journal, ledger, 0);
    await journal.close();
    const path = spoil === 'segment' ? segmentPaths(disk)[1]! : `${dir}/position`;
    for (const at of [0, 4096]) {
      if (spoil === 'segment') disk.content(path).writeUInt32LE(3, at + 8);
      else disk.content(path).write('MILLPOS2', at, 'latin1');
    }
    await expect(open(disk)).rejects.toThrow(/written by a later version of Millrace: start that version/);
    await expect(open(disk)).rejects.toBeInstanceOf(StartError);
    expect(disk.paths()).toContain(path);
    expect(await listQuarantine(dir, disk)).toEqual([]);
  }
});

test('a journal whose directory cannot be opened names the directory and the reason', async () => {
  const { disk } = await filled(4, 30);
  disk.fault = (operation, path) => (operation === 'open' && path.endsWith('epoch.tmp') ? 'EROFS' : undefined);
  await expect(open(disk)).rejects.toThrow(`The journal ${dir} cannot be opened: EROFS`);
  await expect(open(disk)).rejects.toBeInstanceOf(StartError);
});

test('segments of version 1 are given out', async () => {
  const disk = new SimDisk();
  const ledger = newLedger();
  const salt = Buffer.alloc(16, 5);
  const header = encodeSegmentHeader({ epoch: 1, seq: 1, salt, createdMs: 1, name: dir }).subarray(0, 2048);
  header.writeUInt32LE(1, 8);
  header.writeUInt32LE(crc32(header.subarray(0, 2044)), 2044);
  const parts = [header, header];
  let offset = 4096;
  for (let i = 0; i < 3; i += 1) {
    const frame = frameOf(ledger, (i % 2) as Lane, 800);
    const payload = Buffer.concat(frame.parts);
    const { lane, order, rows } = frame;
    const head = Buffer.alloc(40);
    const record = { length: 800, payloadCrc: crc32(payload), order, writtenMs: 1, rows, commit: i, lane, flags: 1 };
    encodeFrameHead(head, 0, record, saltSeed(salt), offset);
    parts.push(head, payload);
    ledger.acked.add(order);
    offset += 840;
  }
  const file = await disk.open(`${dir}/1-1.seg`, 'log');
  await file.write([...parts, Buffer.alloc(4096)], 0);
  const journal = await checkRecovered(disk, ledger);
  expect(journal.degraded).toBe(false);
});

test('an append that a crash cut short is given out by no later start, damage in an old append costs one frame', async () => {
  const disk = new SimDisk();
  const ledger = newLedger();
  const journal = await open(disk);
  const three = () => [0, 1, 0].map((lane) => frameOf(ledger, lane as Lane, 1000));
  const place = (frame: number) => segmentHeaderBytes + frame * 1040 + 500;
  await append(journal, ledger, three());
  await append(journal, ledger, three());
  for (const lost of [3, 4, 5]) {
    const image = disk.crash(undefined);
    image.content(segmentPaths(image)[0]!)[place(lost)]! ^= 1;
    const after: Ledger = { ...newLedger(), sent: ledger.sent, order: ledger.order, commits: ledger.commits };
    for (const order of ledger.commits[0]!) after.acked.add(order);
    for (const order of ledger.commits[1]!) after.refused.add(order);
    // A start that ships nothing. Its frames then follow the torn commit, so the commit is no longer the last one.
    const first = await open(image);
    expect(first.degraded).toBe(false);
    await append(first, after, [frameOf(after, 0, 100)]);
    await checkRecovered(image.crash(undefined), after);
  }
  const image = disk.crash(undefined);
  image.content(segmentPaths(image)[0]!)[place(1)]! ^= 1;
  const damaged = await open(image);
  const given = await shipAll(damaged, ledger);
  expect(given[0].length + given[1].length).toBe(5);
});

test('of an append that the position knows to be durable, damage costs one frame', async () => {
  const disk = new SimDisk();
  const ledger = newLedger();
  const journal = await open(disk);
  await append(journal, ledger, [frameOf(ledger, 1, 1000)]);
  await append(journal, ledger, [frameOf(ledger, 0, 1000), frameOf(ledger, 0, 1000), frameOf(ledger, 0, 1000)]);
  await ship(journal, ledger, 1);
  const image = disk.crash(undefined);
  image.content(segmentPaths(image)[0]!)[segmentHeaderBytes + 2 * 1040 + 500]! ^= 1;
  const damaged = await open(image);
  expect((await shipAll(damaged, ledger))[0].length).toBe(2);
  expect(damaged.degraded).toBe(true);
});

test('a segment whose whole header is lost is kept for an operator', async () => {
  const { disk, ledger } = await filled(4, 30);
  disk.content(segmentPaths(disk)[1]!).fill(0, 0, 8192);
  const journal = await open(disk);
  expect(journal.degraded).toBe(true);
  await shipAll(journal, ledger);
  expect(disk.paths().filter((path) => path.includes('/quarantine/lost-')).length).toBe(2);
});

test('a lost segment is listed also when the disk was full, or the process was killed, before its note was written', async () => {
  const { disk, ledger } = await filled(4, 30);
  const path = segmentPaths(disk)[1]!;
  disk.content(path).fill(0, 0, 8192);
  disk.fault = (operation, path) => (operation !== 'read' && path.includes('.json') ? 'ENOSPC' : undefined);
  const journal = await open(disk);
  expect(journal.degraded).toBe(true);
  expect(await listQuarantine(dir, disk)).toEqual([]);
  await shipAll(journal, ledger);
  disk.fault = () => undefined;
  const later = disk.crash(undefined);
  expect((await open(later)).degraded).toBe(true);
  expect(await listQuarantine(dir, later)).toMatchObject([{ kind: 'gap', source: basename(path) }]);
});

test('a cut or zeroed tail costs only frames of the tail', async () => {
  await fc.assert(
    fc.asyncProperty(fc.integer({ min: 1, max: 9000 }), fc.boolean(), async (bytes, zeroed) => {
      const disk = new SimDisk();
      const ledger = newLedger();
      const journal = await open(disk);
      const ends: { order: bigint; end: number }[] = [];
      for (let i = 0; i < 8; i += 1) {
        await append(journal, ledger, [frameOf(ledger, (i % 2) as Lane, 1000)]);
        ends.push({ order: ledger.order, end: segmentHeaderBytes + (i + 1) * 1040 });
      }
      const image = disk.crash(undefined);
      const path = segmentPaths(image)[0]!;
      const cutAt = Math.max(segmentHeaderBytes, segmentHeaderBytes + 8 * 1040 - bytes);
      if (zeroed) image.content(path).fill(0, cutAt);
      else image.cut(path, cutAt);
      for (const { order, end } of ends) if (end > cutAt) ledger.acked.delete(order);
      const recovered = await checkRecovered(image, ledger);
      expect(recovered.degraded).toBe(false);
      expect(ledger.confirmed).toEqual(ledger.acked);
    }),
    { numRuns: 100, seed: 9 },
  );
}, 60_000);

test('stale bytes of a recycled file are never taken for frames', async () => {
  const disk = new SimDisk();
  const ledger = newLedger();
  const journal = await open(disk);
  for (let round = 0; round < 40; round += 1) {
    await append(journal, ledger, [frameOf(ledger, 0, 2000), frameOf(ledger, 1, 2000)]);
    await shipAll(journal, ledger);
  }
  expect(segmentPaths(disk).length).toBeLessThan(5);
  const before = ledger.confirmed.size;
  const recovered = await open(disk.crash(undefined));
  const again = await shipAll(recovered, ledger);
  expect(again[0].length + again[1].length).toBe(0);
  expect(ledger.confirmed.size).toBe(before);
});

test('an I/O error once moves on to a new file, and nothing acknowledged is lost', async () => {
  for (let fail = 1; fail < 12; fail += 1) {
    const disk = new SimDisk();
    const ledger = newLedger();
    const journal = await open(disk);
    let writes = 0;
    for (let i = 0; i < 12; i += 1) {
      disk.fault = (operation, path) => {
        if (operation !== 'write' || !path.endsWith('.seg')) return undefined;
        writes += 1;
        return writes === fail ? 'EIO' : undefined;
      };
      await appendRandom(journal, ledger, new Random(fail * 100 + i));
    }
    disk.fault = () => undefined;
    expect(journal.failed).toBe(false);
    const recovered = await checkRecovered(disk.crash(new Random(fail)), ledger);
    expect(recovered.degraded).toBe(false);
  }
});

test('a second I/O error in a row ends the journal, without an acknowledgement', async () => {
  const disk = new SimDisk();
  const ledger = newLedger();
  const journal = await open(disk);
  await append(journal, ledger, [frameOf(ledger, 0, 100)]);
  let failed = 0;
  disk.fault = (operation, path) => {
    // The write, the attempt to make its bytes unreadable, and the same once more in a new file.
    if (operation !== 'write' || !path.endsWith('.seg') || failed === 4) return undefined;
    failed += 1;
    return 'EIO';
  };
  await expect(append(journal, ledger, [frameOf(ledger, 0, 100)])).rejects.toMatchObject({ kind: 'failed' });
  expect(journal.failed).toBe(true);
  await expect(append(journal, ledger, [frameOf(ledger, 0, 100)])).rejects.toBeInstanceOf(JournalError);
  disk.fault = () => undefined;
  await checkRecovered(disk.crash(new Random(1)), ledger);
});

test('what was refused because the disk failed is not given out by the next start', async () => {
  for (const code of ['EIO', 'ENOSPC']) {
    const disk = new SimDisk();
    const ledger = newLedger();
    const journal = await open(disk);
    await append(journal, ledger, [frameOf(ledger, 0, 100)]);
    // Frames are refused by the disk though their bytes arrive; a head that is overwritten is not.
    let failures = 2;
    disk.fault = (operation, path, from = 0, to = 0) =>
      operation === 'write' && path.endsWith('.seg') && to - from > 40 && failures-- > 0 ? code : undefined;
    const refused = [frameOf(ledger, 0, 100), frameOf(ledger, 1, 100)];
    await expect(append(journal, ledger, refused)).rejects.toBeInstanceOf(JournalError);
    for (const image of [disk.crash(undefined), disk.crash(new Random(1))]) await checkRecovered(image, ledger);
  }
});

test('a full disk is refused, and the journal continues when space returns', async () => {
  const disk = new SimDisk();
  const ledger = newLedger();
  disk.capacityBytes = 80 * 1024;
  let nowMs = 1;
  const clock = { now: () => 1_700_000_000_000 + nowMs, monotonic: () => nowMs };
  const journal = await open(disk, { clock });
  let refused = 0;
  for (let i = 0; i < 60; i += 1) {
    try {
      await append(journal, ledger, [frameOf(ledger, 0, 3000)]);
    } catch (error) {
      expect(error).toMatchObject({ kind: 'full' });
      refused += 1;
    }
  }
  expect(refused).toBeGreaterThan(10);
  expect(journal.failed).toBe(false);
  // Shipping frees files, which are used again although the disk is still full.
  await shipAll(journal, ledger);
  await append(journal, ledger, [frameOf(ledger, 0, 3000)]);
  for (let i = 0; i < 20; i += 1) await append(journal, ledger, [frameOf(ledger, 0, 3000)]).catch(() => {});
  disk.capacityBytes = Number.MAX_SAFE_INTEGER;
  nowMs += 1000;
  for (let i = 0; i < 20; i += 1) await append(journal, ledger, [frameOf(ledger, 0, 3000)]);
  await checkRecovered(disk.crash(new Random(1)), ledger);
});

test('a start on a full disk ships, and then takes new frames', async () => {
  const { disk, ledger } = await filled(6, 40);
  disk.capacityBytes = disk.usedBytes();
  const journal = await open(disk);
  // The file that the last process has prepared is used first. After that there is no free space.
  const fill = async () => {
    for (let i = 0; i < 20; i += 1) await append(journal, ledger, [frameOf(ledger, 0, 3000)]);
  };
  await expect(fill()).rejects.toMatchObject({ kind: 'full' });
  await shipAll(journal, ledger);
  for (const order of ledger.acked) expect(ledger.confirmed.has(order)).toBe(true);
  await append(journal, ledger, [frameOf(ledger, 0, 3000)]);
  await checkRecovered(disk.crash(new Random(1)), ledger);
});

test('ENOSPC on the write itself refuses, seals the file and loses nothing', async () => {
  const disk = new SimDisk();
  const ledger = newLedger();
  const journal = await open(disk);
  await append(journal, ledger, [frameOf(ledger, 0, 500), frameOf(ledger, 1, 500)]);
  disk.fault = (operation, path) => (operation === 'write' && path.endsWith('.seg') ? 'ENOSPC' : undefined);
  await expect(append(journal, ledger, [frameOf(ledger, 0, 500)])).rejects.toMatchObject({ kind: 'full' });
  disk.fault = () => undefined;
  await append(journal, ledger, [frameOf(ledger, 0, 500)]);
  await checkRecovered(disk.crash(new Random(3)), ledger);
});

test('without a free file handle an append waits for its segment; afterwards the journal continues', async () => {
  const disk = new SimDisk();
  const ledger = newLedger();
  const journal = await open(disk);
  let refused = 0;
  disk.fault = (operation) => (operation === 'open' && (refused += 1) <= 6 ? 'EMFILE' : undefined);
  for (let i = 0; i < 20; i += 1) await append(journal, ledger, [frameOf(ledger, 0, 3000)]);
  expect(refused).toBeGreaterThan(6);
  expect(journal.failed).toBe(false);
  await checkRecovered(disk.crash(undefined), ledger);
});

test('a slow disk only makes appends slow', async () => {
  const disk = new SimDisk();
  const ledger = newLedger();
  const journal = await open(disk);
  await append(journal, ledger, [frameOf(ledger, 0, 500)]);
  disk.fault = (operation, path) => (operation === 'write' && path.endsWith('.seg') ? 100 : undefined);
  const done = append(journal, ledger, [frameOf(ledger, 0, 500)]);
  expect(journal.unsyncedBytes).toBeGreaterThan(500);
  expect(journal.isShipped(ledger.order)).toBe(false);
  // Durable frames are shipped meanwhile; an append in flight is not returned.
  expect((await shipAll(journal, ledger))[0].length).toBe(1);
  await done;
  expect(journal.unsyncedBytes).toBe(0);
  expect((await shipAll(journal, ledger))[0].length).toBe(1);
});

test('a position that cannot be written costs repeated rows, never lost ones', async () => {
  const disk = new SimDisk();
  const ledger = newLedger();
  const journal = await open(disk);
  const random = new Random(8);
  for (let i = 0; i < 10; i += 1) await appendRandom(journal, ledger, random);
  disk.fault = (_, path) => (path.includes('/position') ? 'EIO' : undefined);
  await shipAll(journal, ledger);
  disk.fault = () => undefined;
  for (let i = 0; i < 10; i += 1) await appendRandom(journal, ledger, random);
  const image = disk.crash(new Random(2));
  ledger.confirmed.clear();
  await checkRecovered(image, ledger);
});

test('a clean stop ships nothing twice', async () => {
  const disk = new SimDisk();
  const ledger = newLedger();
  const journal = await open(disk);
  for (let i = 0; i < 20; i += 1) await appendRandom(journal, ledger, new Random(i));
  while (await ship(journal, ledger, 1));
  await ship(journal, ledger, 0);
  await journal.close();
  const confirmed = new Set(ledger.confirmed);
  const next = await open(disk.crash(new Random(1)));
  const all = await shipAll(next, ledger);
  for (const order of [...all[0], ...all[1]]) expect(confirmed.has(order)).toBe(false);
});

test('late frames that wait do not keep the disk space of the live frames beside them', async () => {
  const disk = new SimDisk();
  const ledger = newLedger();
  const segmentBytes = 256 * 1024;
  const journal = await open(disk, { segmentBytes });
  for (let i = 0; i < 400; i += 1) {
    // The late frame comes first: in a segment without links it is the first frame of all.
    const frames = i % 5 === 0 ? [frameOf(ledger, 1, 40)] : [];
    frames.push(frameOf(ledger, 0, 30_000));
    await append(journal, ledger, frames);
    await shipAllOf(journal, ledger, 0);
  }
  await vi.waitFor(() => expect(journal.backlogDiskBytes).toBeLessThan(7 * segmentBytes), 20_000);
  expect(disk.usedBytes()).toBeLessThan(14 * segmentBytes);
  expect(journal.fileBytes).toBeLessThan(14 * segmentBytes);
  await checkRecovered(
    disk.crash(new Random(3)),
    { ...ledger, confirmed: new Set(ledger.confirmed) },
    { segmentBytes },
  );
  expect((await shipAllOf(journal, ledger, 1)).length).toBe(80);
  expect(journal.backlogDiskBytes).toBe(0);
});

test('a unit that was open while its segments were packed is confirmed as a whole', async () => {
  const disk = new SimDisk();
  const ledger = newLedger();
  const segmentBytes = 256 * 1024;
  const journal = await open(disk, { segmentBytes, idleBytesMax: 0 });
  const appendBoth = () => append(journal, ledger, [frameOf(ledger, 1, 40), frameOf(ledger, 0, 30_000)]);
  for (let i = 0; i < 20; i += 1) await appendBoth();
  const unit = await journal.next(1, { rowsMax: 1e6, bytesMax: 12 * 40 });
  expect(unit!.frames).toBe(12);
  const before = await inspectJournal(dir, disk);
  for (let i = 0; i < 20; i += 1) {
    await appendBoth();
    await shipAllOf(journal, ledger, 0);
  }
  await vi.waitFor(() => expect(journal.backlogDiskBytes).toBeLessThan(2 * segmentBytes), 20_000);
  // A report from before the packing, and a new report, contain every late frame and no damage.
  for (const { segments } of [before, await inspectJournal(dir, disk)]) {
    for (const segment of segments) {
      for await (const step of readSegment(segment, disk)) expect(step.kind).toBe('frame');
    }
  }
  const { confirmed } = ledger;
  await checkRecovered(disk.crash(undefined), { ...ledger, confirmed: new Set(confirmed) }, { segmentBytes });
  await journal.confirm(unit!);
  for (const payload of unit!.payloads) ledger.confirmed.add(payload.readBigUInt64LE());
  const again = await open(disk.crash(undefined), { segmentBytes });
  expect((await shipAllOf(again, ledger, 1)).length).toBe(28);
});

test('a segment whose name could not be made durable is removed', async () => {
  const disk = new SimDisk();
  const ledger = newLedger();
  const journal = await open(disk);
  let renamed = '';
  let syncs = 0;
  // Every other segment that is made ahead fails after its rename; the next attempt succeeds.
  disk.fault = (operation, path) => {
    if (operation === 'rename') renamed = path;
    if (operation !== 'syncDirectory' || !renamed.endsWith('.seg.tmp')) return undefined;
    syncs += 1;
    return syncs % 2 === 1 ? 'EIO' : undefined;
  };
  for (let i = 0; i < 60; i += 1) {
    await append(journal, ledger, [frameOf(ledger, 0, 3000)]);
    await shipAll(journal, ledger);
  }
  await journal.close();
  expect(syncs).toBeGreaterThan(20);
  // The current segment, the next one, spare ones, and two failed ones that are being removed.
  expect(disk.paths().filter((path) => /seg|spare/.test(path)).length).toBeLessThan(9);
});

test('of two owners the earlier one acknowledges nothing that the later one does not find', async () => {
  for (let round = 0; round < 3; round += 1) {
    const disk = new SimDisk();
    const ledger = newLedger();
    const earlier = await open(disk, { locked: false, idleBytesMax: 0 });
    let lost: string | undefined;
    let laterIsOpen = false;
    // An owner that acknowledges as long as it may, while another one opens the directory.
    const appending = (async () => {
      for (let i = 0; ; i += 1) {
        await append(earlier, ledger, [frameOf(ledger, (i % 2) as Lane, 500)]);
        if (i % 3 === 0) await new Promise((resolve) => setTimeout(resolve, 1));
        if (i > 10_000) throw new Error('the earlier owner never notices');
      }
    })().catch((error: Error) => {
      lost = error.message;
    });
    await new Promise((resolve) => setTimeout(resolve, 20 * round));
    const later = await open(disk, { locked: false, idleBytesMax: 0 });
    laterIsOpen = true;
    await appending;
    expect(laterIsOpen).toBe(true);
    expect(lost).toMatch(/another process has taken the journal/);
    expect(earlier.failed).toBe(true);
    const own: Ledger = { ...newLedger(), sent: ledger.sent, order: ledger.order + 1000n };
    for (let i = 0; i < 30; i += 1) {
      await append(later, own, [frameOf(own, 0, 500)]);
      await ship(later, ledger, (i % 2) as Lane);
    }
    for (const order of own.acked) ledger.acked.add(order);
    // Frames refused for lack of ownership may exist: their sender must send again.
    ledger.refused.clear();
    await checkRecovered(disk.crash(undefined), ledger, { locked: false });
  }
});

test('an owner that lost the directory writes no position and recycles nothing', async () => {
  const disk = new SimDisk();
  const ledger = newLedger();
  const onLost = vi.fn();
  const earlier = await open(disk, { locked: false, onLost });
  for (let i = 0; i < 20; i += 1) await append(earlier, ledger, [frameOf(ledger, 0, 3000)]);
  const unit = await earlier.next(0, { rowsMax: 1e6, bytesMax: 1e9 });
  await open(disk, { locked: false });
  const ofEarlier = () => segmentPaths(disk).filter((path) => path.startsWith(`${dir}/1-`));
  const before = ofEarlier();
  const position = disk.paths().includes(`${dir}/position`);
  await earlier.confirm(unit!);
  expect(onLost).toHaveBeenCalledOnce();
  expect(ofEarlier()).toEqual(before);
  expect(disk.paths().includes(`${dir}/position`)).toBe(position);
  await checkRecovered(disk.crash(undefined), ledger, { locked: false });
});

test('an owner that loses the directory while it writes a position on a slow disk recycles nothing', async () => {
  const disk = new SimDisk();
  const ledger = newLedger();
  const onLost = vi.fn();
  const earlier = await open(disk, { locked: false, onLost });
  for (let i = 0; i < 60; i += 1) await append(earlier, ledger, [frameOf(ledger, 0, 3000)]);
  await earlier.confirm((await earlier.next(0, { rowsMax: 1, bytesMax: 1e9 }))!);
  const unit = await earlier.next(0, { rowsMax: 1e6, bytesMax: 1e9 });
  // The segment that is prepared holds no frame: the later owner removes it.
  const holdsFrames = (path: string) => disk.content(path).some((byte, at) => at >= segmentHeaderBytes && byte !== 0);
  const ofEarlier = () => segmentPaths(disk).filter((path) => path.startsWith(`${dir}/1-`) && holdsFrames(path));
  const before = ofEarlier();
  expect(before.length).toBeGreaterThan(2);
  disk.fault = (operation, path) => (operation === 'write' && path.endsWith('position') ? 800 : undefined);
  const confirmed = earlier.confirm(unit!);
  await new Promise((resolve) => setTimeout(resolve, 50));
  disk.fault = () => undefined;
  await open(disk, { locked: false });
  await confirmed;
  expect(onLost).toHaveBeenCalledOnce();
  expect(ofEarlier()).toEqual(before);
});
