/** Lines while the descriptor takes nothing, takes them in pieces, and has lost its reader. */
import { afterEach, beforeEach, expect, test, vi } from 'vitest';
import { LineOutput } from './line-output.ts';

beforeEach(() => vi.useFakeTimers());
afterEach(() => vi.useRealTimers());

/** A descriptor that takes `room` bytes, then fails with `code`. */
function descriptor() {
  const state = { text: '', room: Number.POSITIVE_INFINITY, code: 'ENOSPC', calls: 0 };
  const output = new LineOutput(2, (_fd, bytes) => {
    state.calls += 1;
    if (state.room === 0) throw Object.assign(new Error('no'), { code: state.code });
    const taken = bytes.subarray(0, state.room);
    state.room -= taken.length;
    state.text += Buffer.from(taken).toString();
    return taken.length;
  });
  return { state, output };
}

test.each(['ENOSPC', 'EAGAIN', 'EIO'])('%s: lines wait, are written in order later, and none is cut', (code) => {
  const { state, output } = descriptor();
  Object.assign(state, { code, room: 8 });
  for (const line of ['first\n', 'second\n', 'third\n']) output.write(line);
  expect(state.text).toBe('first\nse');
  vi.advanceTimersByTime(5_000);
  state.room = Number.POSITIVE_INFINITY;
  vi.advanceTimersByTime(100);
  output.write('fourth\n');
  expect(state.text).toBe('first\nsecond\nthird\nfourth\n');
});

test('lines above the cap are lost and counted, in a line after those that waited', () => {
  const { state, output } = descriptor();
  state.room = 0;
  const line = `${'x'.repeat(1023)}\n`;
  for (let n = 0; n < 1500; n += 1) output.write(line);
  state.room = Number.POSITIVE_INFINITY;
  vi.advanceTimersByTime(100);
  output.write('later\n');
  const lines = state.text.split('\n');
  expect(lines.filter((each) => each.startsWith('x'))).toHaveLength(1024);
  expect(JSON.parse(lines[1024]!)).toMatchObject({ level: 'warn', event: 'log_lines_lost', lines: 476 });
  expect(lines[1025]).toBe('later');
});

test('a descriptor that works is written at once; one without a reader is left alone', () => {
  const { state, output } = descriptor();
  output.write('at once\n');
  expect(state.text).toBe('at once\n');
  Object.assign(state, { room: 0, code: 'EPIPE' });
  output.write('nobody reads it\n');
  const { calls } = state;
  for (let n = 0; n < 100; n += 1) output.write('nobody reads it\n');
  vi.advanceTimersByTime(5_000);
  expect(state.calls).toBe(calls);
});
