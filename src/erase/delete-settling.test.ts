/** The fences that a journal has settled, according to its reports. */
import { expect, test } from 'vitest';
import type { JournalReport } from '../ingest/journal-report.ts';
import { Settling } from './delete-settling.ts';

const report = (orderHigh: number, orderShipped: number, run = '1'): JournalReport => ({
  writer: 1,
  run,
  orderHigh: String(orderHigh),
  orderShipped: String(orderShipped),
  orderDone: '0',
  orderRecovered: null,
  orderHeld: null,
  isAhead: false,
});

test('a fence is settled when all that the journal held at that moment is shipped', () => {
  const settling = new Settling();
  const note = (fence: number, high: number, shipped: number) =>
    settling.note(fence, [report(high, shipped)])[0]!.settled;
  expect(note(5, 10, 9)).toBe(0);
  expect(note(6, 20, 9)).toBe(0);
  expect(note(7, 30, 15)).toBe(5);
  expect(note(7, 30, 30)).toBe(7);
});

test('an append that was in flight and failed delays no fence', () => {
  const settling = new Settling();
  const note = (fence: number, high: number, shipped: number) =>
    settling.note(fence, [report(high, shipped)])[0]!.settled;
  expect(note(5, 20, 10)).toBe(0);
  expect(note(6, 30, 10)).toBe(0);
  expect(note(6, 10, 10)).toBe(6);
});

test('a new opening begins again', () => {
  const settling = new Settling();
  expect(settling.note(5, [report(10, 10)])[0]!.settled).toBe(5);
  expect(settling.knows(report(10, 10, '2'))).toBe(false);
  expect(settling.note(6, [report(20, 10, '2')])[0]!.settled).toBe(0);
});
