/** A backup holds the journals of all workers or of none. */
import { expect, test } from 'vitest';
import { JournalHold } from './journal-hold.ts';

test('a worker that does not serve is named, with the reason, and no worker is held', async () => {
  let missing: string | undefined = 'worker-1 does not serve (EIO)';
  const sent: number[] = [];
  const hold: JournalHold = new JournalHold(
    2,
    (slot, { kind }) => {
      sent.push(slot);
      if (kind === 'holdJournals')
        setImmediate(() => hold.received(slot, { kind: 'journalsHeld', id: 1, cuts: [], intact: true }));
    },
    () => missing,
  );
  await expect(hold.begin()).rejects.toThrow('worker-1 does not serve (EIO)');
  expect(sent).toEqual([]);
  missing = undefined;
  expect(await hold.begin()).toEqual({ id: 1, cuts: [] });
  expect(sent).toEqual([0, 1]);
});
