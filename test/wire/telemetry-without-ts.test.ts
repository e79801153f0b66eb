/** Server time rises strictly per device, whichever worker takes the message. */
import { expect, test } from 'vitest';
import { newDevice, sharedEngine } from '../shared-engine.ts';
import { RawConnection } from './raw.ts';
import { Poster } from './stored.ts';

test('1 000 messages of one device without ts, sent within milliseconds over all workers, are all stored', async () => {
  const device = await newDevice();
  const posters = await Promise.all(
    Array.from({ length: 50 }, async () => {
      return new Poster(device, await RawConnection.open(sharedEngine().address.port));
    }),
  );
  await Promise.all(
    posters.map(async (poster, part) => {
      for (let n = 0; n < 20; n += 1) await poster.accept(`{"n":${part * 20 + n}}`);
    }),
  );
  const points = await posters[0]!.points('n', undefined, 1_000);
  expect(points.map(({ value }) => Number(value)).sort((a, b) => a - b)).toEqual(
    Array.from({ length: 1_000 }, (_, n) => n),
  );
  expect(new Set(points.map(({ ts }) => ts)).size).toBe(1_000);
  for (const poster of posters) poster.close();
});
