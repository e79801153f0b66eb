/** The ledger of the crash run must detect every kind of loss. Otherwise a crash run that succeeds proves nothing. */
import { expect, test } from 'vitest';
import { Fate, isGood, Ledger, type StoredRow, valuesOf } from '../../bench/crash/ledger.ts';

const firstTs = 1_000_000;

function rowsOf(n: number): StoredRow[] {
  const values = valuesOf(0, n);
  return Object.entries(values).map(([key, value]) => ({ ts: firstTs + n, key, value }));
}

/** Makes a ledger of two acknowledged records, one refused and one without an answer. */
function account(): Ledger {
  const ledger = new Ledger(1, 10, firstTs);
  for (const fate of [Fate.acknowledged, Fate.acknowledged, Fate.refused, Fate.unanswered]) {
    ledger.settle(ledger.take(0), fate);
  }
  return ledger;
}

function judge(rows: StoredRow[]) {
  const ledger = account();
  const verdict = ledger.emptyVerdict();
  ledger.check(0, rows, verdict);
  return { good: isGood(verdict), ...verdict };
}

test('all acknowledged points, once, are correct; points without an answer may or may not exist', () => {
  expect(judge([...rowsOf(0), ...rowsOf(1)]).good).toBe(true);
  expect(judge([...rowsOf(0), ...rowsOf(1), ...rowsOf(3)]).good).toBe(true);
});

test('a missing record and a missing key are found', () => {
  expect(judge(rowsOf(0))).toMatchObject({ good: false, missing: 1 });
  expect(judge([...rowsOf(0), ...rowsOf(1).slice(1)])).toMatchObject({ good: false, missing: 1 });
});

test('a changed value, a row twice, a refused and an unsent record are found', () => {
  const changed = rowsOf(1).map((row) => ({ ...row, value: `${row.value}1` }));
  expect(judge([...rowsOf(0), ...changed])).toMatchObject({ good: false, altered: 3 });
  expect(judge([...rowsOf(0), ...rowsOf(1), ...rowsOf(1)])).toMatchObject({ good: false, twice: 3 });
  expect(judge([...rowsOf(0), ...rowsOf(1), ...rowsOf(2)])).toMatchObject({ good: false, refusedButStored: 3 });
  expect(judge([...rowsOf(0), ...rowsOf(1), ...rowsOf(7)])).toMatchObject({ good: false, unknown: 3 });
});
