/** Answers in slices share the turns of the event loop. */

import type { HttpResponse as UwsResponse } from 'uWebSockets.js';
import { setImmediate as nextTurn } from 'node:timers/promises';
import { expect, test } from 'vitest';
import { limits } from '../base/limits.ts';
import { placeOwners } from '../base/places.ts';
import { SliceTurns } from './slice-turns.ts';
import { inSlices, SliceSender } from './slices.ts';

/** A response whose reader takes everything at once. */
function greedyReader() {
  let offset = 0;
  return {
    cork: (write: () => void) => write(),
    onWritable() {},
    getWriteOffset: () => offset,
    tryEnd: (bytes: Buffer, total: number) => [true, (offset += bytes.length) === total],
  };
}

test('an answer whose reader takes everything leaves in many turns of the loop, and other work runs between', async () => {
  const body = Buffer.alloc(4 * limits.sliceLoopBytesMax);
  const reader = greedyReader();
  const sender = new SliceSender(reader as unknown as UwsResponse, inSlices(body), placeOwners('a', null));
  let outcome: unknown;
  const sent = sender.run(() => {}).then((end) => (outcome = end));
  const sentByTurn: number[] = [];
  while (outcome === undefined) {
    await nextTurn();
    sentByTurn.push(reader.getWriteOffset());
  }
  expect(await sent).toBe('sent');
  expect(sentByTurn.length).toBeGreaterThanOrEqual(4);
  expect(reader.getWriteOffset()).toBe(body.length);
});

test('of many answers in one turn of the loop only its bytes leave; tenants and their customers take turns', async () => {
  const slice = limits.sliceTurnBytes;
  const turns = new SliceTurns(2 * slice);
  const went: string[] = [];
  const take = (name: string, tenant: string, customer: string | null) =>
    void Promise.resolve(turns.take(placeOwners(tenant, customer), slice)).then(() => went.push(name));
  for (let n = 0; n < 6; n += 1) take(`a${n}`, 'a', null);
  take('a of a customer', 'a', 'c');
  take('b0', 'b', null);
  take('b1', 'b', null);
  await Promise.resolve();
  expect(went).toEqual(['a0', 'a1']);
  const seen: string[][] = [];
  while (went.length < 9) {
    const before = went.length;
    await nextTurn();
    if (went.length > before) seen.push(went.slice(before));
  }
  expect(seen).toEqual([['a2', 'b0'], ['a of a customer', 'b1'], ['a3', 'a4'], ['a5']]);
});
