import { expect, test } from 'vitest';
import { SimDisk } from '../../test/crash/sim-disk.ts';
import { Random } from '../../test/harness/random.ts';
import { type Position, PositionFile } from './position.ts';

const dir = '/journal/worker-0';

function at(offset: number): Position {
  return {
    cursors: [
      { epoch: 3, seq: 9, offset },
      { epoch: 3, seq: 8, offset: 4096 },
    ],
    orderHigh: 2n ** 62n + BigInt(offset),
  };
}

async function found(disk: SimDisk): Promise<Position | undefined> {
  const file = await PositionFile.open(disk, dir);
  await file.close();
  return file.found;
}

test('the last written position is found', async () => {
  const disk = new SimDisk();
  expect(await found(disk)).toBeUndefined();
  const file = await PositionFile.open(disk, dir);
  for (let offset = 8; offset <= 40; offset += 8) {
    await file.write(at(offset));
    expect(await found(disk)).toEqual(at(offset));
  }
});

test('a spoiled slot leaves the position before it; two leave none', async () => {
  const disk = new SimDisk();
  const file = await PositionFile.open(disk, dir);
  for (let offset = 8; offset <= 32; offset += 8) await file.write(at(offset));
  const bytes = disk.content(`${dir}/position`);
  // The fourth write went to slot 0.
  bytes[30]! ^= 1;
  expect(await found(disk)).toEqual(at(24));
  bytes[4096 + 30]! ^= 1;
  expect(await found(disk)).toBeUndefined();
});

test('after a failed write the next one makes a new file', async () => {
  const disk = new SimDisk();
  const file = await PositionFile.open(disk, dir);
  await file.write(at(8));
  disk.fault = (operation) => (operation === 'write' ? 'EIO' : undefined);
  await expect(file.write(at(16))).rejects.toThrow('EIO');
  disk.fault = () => undefined;
  await file.write(at(24));
  for (let seed = 0; seed < 20; seed += 1) expect(await found(disk.crash(new Random(seed)))).toEqual(at(24));
});
