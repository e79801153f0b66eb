/** Which inserts are joined. A stand-in records the inserts and does not carry them out. */
import { mkdtempSync, readFileSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, expect, test, vi } from 'vitest';
import { BodyFiles } from './body.ts';
import type { Result } from './engine.ts';
import { JoinedInserts } from './joined-inserts.ts';

const root = mkdtempSync(join(tmpdir(), 'millrace-joined-'));
const files = new BodyFiles(root, 16 * 1024 * 1024);
afterAll(() => {
  files.close();
  rmSync(root, { recursive: true, force: true });
});

const result: Result = { body: new Uint8Array(0), elapsedSeconds: 0, rowsRead: 0, bytesRead: 0 };

function inserts(refuses: (rows: string) => boolean = () => false) {
  const joined = new JoinedInserts(files);
  const done: { rows: string; marks: readonly string[] }[] = [];
  const send = (statement: string, mark: string, rows: string, gone = new AbortController().signal) => {
    const file = files.create();
    file.append(Buffer.from(rows));
    file.end();
    return joined.insert(statement, { mark, file, gone }, async ({ path, marks }) => {
      const all = readFileSync(path, 'utf8');
      if (refuses(all)) throw new Error('refused');
      done.push({ rows: all.length > 100 ? String(all.length) : all, marks });
      return result;
    });
  };
  return { send, done };
}

test('small inserts of one statement are one insert, in the order of their arrival; others are alone', async () => {
  const { send, done } = inserts();
  const large = 'x'.repeat(300_000);
  await Promise.all([send('a', '1', 'one,'), send('b', '2', 'two,'), send('a', '3', 'three,'), send('a', '4', large)]);
  expect(done).toHaveLength(3);
  expect(done).toContainEqual({ rows: 'one,three,', marks: ['1', '3'] });
  expect(done).toContainEqual({ rows: 'two,', marks: ['2'] });
  expect(done).toContainEqual({ rows: '300000', marks: ['4'] });
  await send('a', '5', 'later,');
  expect(done.at(-1)).toEqual({ rows: 'later,', marks: ['5'] });
});

test('what fails together is repeated alone, and each client gets the answer for its own rows', async () => {
  const { send, done } = inserts((rows) => rows.includes('bad'));
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
  expect(done).toContainEqual({ rows: 'one,three,', marks: ['1', '3'] });
});

test('at most 32 inserts are joined', async () => {
  const { send, done } = inserts();
  await Promise.all(Array.from({ length: 40 }, (_, n) => send('a', String(n), '.')));
  expect(done.map(({ marks }) => marks.length)).toEqual([32, 8]);
});

test('inserts that cannot be joined for lack of a file are inserted alone', async () => {
  const { send, done } = inserts();
  const all = [send('a', '1', 'one,'), send('a', '2', 'two,')];
  const create = vi.spyOn(files, 'create').mockImplementation(() => {
    throw Object.assign(new Error('EMFILE: too many open files'), { code: 'EMFILE' });
  });
  await Promise.all(all);
  create.mockRestore();
  expect(done.map(({ marks }) => marks)).toEqual([['1'], ['2']]);
});
