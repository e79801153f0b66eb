/** Messages without ts: none replaces another, on any worker, and each is stored at its arrival. */
import { expect, test } from 'vitest';
import { RawConnection } from '../../harness/raw.ts';
import { newDevice, sharedEngine } from '../../harness/shared-engine.ts';
import { clockErrorMs, Poster } from '../../harness/stored.ts';

test('1 000 messages of one device without ts, sent within milliseconds over all workers, are all stored', async () => {
  const device = await newDevice();
  const posters = await Promise.all(
    Array.from({ length: 50 }, async () => {
      return new Poster(device, await RawConnection.open(sharedEngine().address.port));
    }),
  );
  const sentFrom = Date.now();
  await Promise.all(
    posters.map(async (poster, part) => {
      for (let n = 0; n < 20; n += 1) await poster.accept(`{"n":${part * 20 + n}}`);
    }),
  );
  const sentUpTo = Date.now();
  const points = await posters[0]!.points('n', undefined, 1_000);
  expect(points.map(({ value }) => Number(value)).sort((a, b) => a - b)).toEqual(
    Array.from({ length: 1_000 }, (_, n) => n),
  );
  for (const { ts } of points) expect(ts).toBeGreaterThanOrEqual(sentFrom - clockErrorMs);
  for (const { ts } of points) expect(ts).toBeLessThanOrEqual(sentUpTo + clockErrorMs);
  for (const poster of posters) poster.close();
});
