/** Which inserts are joined. A stand-in records the inserts and does not carry them out. */
import { afterEach, expect, test, vi } from 'vitest';
import { JoinedInserts } from './joined-inserts.ts';

afterEach(() => void vi.useRealTimers());

interface Rows {
  text: string;
  bytes: number;
}

function inserts({
  refuses = (_: string) => false,
  everyMs,
}: {
  refuses?: (rows: string) => boolean;
  everyMs?: number;
} = {}) {
  const join = vi.fn((all: readonly Rows[]) => {
    const text = all.map((rows) => rows.text).join('');
    return { rows: { text, bytes: text.length } };
  });
  const pace = everyMs === undefined ? {} : { everyMs: () => everyMs };
  const joined = new JoinedInserts<Rows, string>({ bytesMax: 1_000, windowMs: 5, join, ...pace });
  const done: { rows: string; marks: readonly string[]; at: number }[] = [];
  const send = (statement: string, mark: string, text: string, gone = new AbortController().signal) => {
    return joined.insert(
      { same: statement, pace: statement },
      { mark, rows: { text, bytes: text.length }, gone },
      async ({ rows, marks }) => {
        if (refuses(rows.text)) throw new Error('refused');
        done.push({ rows: rows.text, marks, at: performance.now() });
        return 'stored';
      },
    );
  };
  return { send, done, join };
}

test('small inserts of one statement are one insert, in the order of their arrival; others are alone', async () => {
  const { send, done } = inserts();
  const large = 'x'.repeat(1_001);
  await Promise.all([send('a', '1', 'one,'), send('b', '2', 'two,'), send('a', '3', 'three,'), send('a', '4', large)]);
  expect(done).toHaveLength(3);
  expect(done).toContainEqual({ rows: 'one,three,', marks: ['1', '3'], at: expect.any(Number) });
  expect(done).toContainEqual({ rows: 'two,', marks: ['2'], at: expect.any(Number) });
  expect(done).toContainEqual({ rows: large, marks: ['4'], at: expect.any(Number) });
  await send('a', '5', 'later,');
  expect(done.at(-1)).toMatchObject({ rows: 'later,', marks: ['5'] });
});

test('what fails together is repeated alone, and each client gets the answer for its own rows', async () => {
  const { send, done } = inserts({ refuses: (rows) => rows.includes('bad') });
  const answers = await Promise.allSettled([send('a', '1', 'good,'), send('a', '2', 'bad,'), send('a', '3', 'fine,')]);
  expect(answers.map(({ status }) => status)).toEqual(['fulfilled', 'rejected', 'fulfilled']);
  expect(done.map(({ marks }) => marks)).toEqual([['1'], ['3']]);
});

test('the rows of a client that left meanwhile are not inserted with those of others', async () => {
  const { send, done } = inserts();
  const left = new AbortController();
  const all = [send('a', '1', 'one,'), send('a', '2', 'left,', left.signal), send('a', '3', 'three,')];
  left.abort();
  await Promise.all(all);
  expect(done).toContainEqual({ rows: 'one,three,', marks: ['1', '3'], at: expect.any(Number) });
});

test('at most 32 inserts are joined', async () => {
  const { send, done } = inserts();
  await Promise.all(Array.from({ length: 40 }, (_, n) => send('a', String(n), '.')));
  expect(done.map(({ marks }) => marks.length)).toEqual([32, 8]);
});

test('rows that would be too many together are inserted at once, and the next ones join each other', async () => {
  const { send, done } = inserts({ everyMs: 3_600_000 });
  await send('a', '0', 'first,');
  const full = ['1', '2'].map((mark) => send('a', mark, 'x'.repeat(400)));
  void send('a', '3', 'y'.repeat(400));
  await Promise.all(full);
  expect(done.map(({ marks }) => marks)).toEqual([['0'], ['1', '2']]);
});

test('inserts that start early, because they are full, do not delay the next one beyond its pace', async () => {
  vi.useFakeTimers({ toFake: ['setTimeout', 'clearTimeout', 'performance'] });
  const { send, done } = inserts({ everyMs: 100 });
  const begin = performance.now();
  // Each of these starts the one before it.
  const sent = Array.from({ length: 50 }, (_, n) => send('a', String(n), 'x'.repeat(600)));
  await vi.advanceTimersByTimeAsync(200);
  expect(done).toHaveLength(sent.length);
  expect(done.at(-1)!.at - begin).toBe(100);
});

test('a statement starts no more often than its pace, and the first one at once', async () => {
  vi.useFakeTimers({ toFake: ['setTimeout', 'clearTimeout', 'performance'] });
  const { send, done } = inserts({ everyMs: 100 });
  const begin = performance.now();
  const sent = [send('a', '1', 'one,')];
  await vi.advanceTimersByTimeAsync(5);
  sent.push(send('a', '2', 'two,'), send('b', '3', 'other,'));
  await vi.advanceTimersByTimeAsync(100);
  sent.push(send('a', '4', 'three,'));
  await vi.advanceTimersByTimeAsync(100);
  await Promise.all(sent);
  expect(done.map(({ rows, at }) => [rows, at - begin])).toEqual([
    ['one,', 5],
    ['other,', 10],
    ['two,', 105],
    ['three,', 205],
  ]);
});

test('inserts that cannot be joined, as for lack of a file, are inserted alone', async () => {
  const { send, done, join } = inserts();
  join.mockImplementation(() => {
    throw Object.assign(new Error('EMFILE: too many open files'), { code: 'EMFILE' });
  });
  await Promise.all([send('a', '1', 'one,'), send('a', '2', 'two,')]);
  expect(done.map(({ marks }) => marks)).toEqual([['1'], ['2']]);
});
