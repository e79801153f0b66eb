/** Builds the table of the report from the rows of a planned query: labels, pivoted columns, cells in order. */
import { badRequest } from '../base/errors.ts';
import { limits } from '../base/limits.ts';
import { CellKind } from './aggregates.ts';
import { emptyText } from './devices.ts';
import type { Dimension, Plan } from './plan.ts';
import type { Field } from './view.ts';

/** An exact number as a string, any other number, or a string. */
export type Cell = { exact: string } | number | string;

export interface Table {
  labels: string[];
  /** Each row is as long as `labels`. */
  rows: Iterable<Cell[]>;
}

/**
 * The row of a JSON answer: two members for each row field, then three for each value, or one with all cells of a
 * pivot.
 */
export type ResultRow = unknown[];

export function tableOf(plan: Plan, result: ResultRow[]): Table {
  return plan.columns.length === 0 ? flatTable(plan, result) : pivotTable(plan, result);
}

function flatTable({ rows, values }: Plan, result: ResultRow[]): Table {
  const labels = [...rows, ...values.map((field) => ({ field }))].map(({ field }) => field.label);
  const valuesAt = 2 * rows.length;
  function* cells(): Generator<Cell[]> {
    for (const row of result) {
      yield [...dimensionCells(rows, row), ...values.map((field, v) => valueCell(field, row, valuesAt + 3 * v))];
    }
  }
  return { labels, rows: cells() };
}

interface PivotColumn {
  cells: Cell[];
  /** The sort key: for each pivot field, whether it is a string, then its number or string. */
  order: (number | string)[];
  at: number;
}

function pivotTable({ rows, columns, values }: Plan, result: ResultRow[]): Table {
  const found = new Map<string, PivotColumn>();
  for (const row of result) {
    for (const cell of row.at(-1) as ResultRow[]) {
      const id = columnId(columns, cell);
      if (found.has(id)) continue;
      if (found.size >= limits.pivotColumnsMax) {
        throw badRequest(
          'pivot_columns',
          `The pivot makes more than ${limits.pivotColumnsMax} columns: filter its field.`,
        );
      }
      found.set(id, { cells: dimensionCells(columns, cell), order: orderOf(columns, cell), at: 0 });
    }
  }
  const pivoted = [...found.values()].sort(byOrder);
  const labels = rows.map(({ field }) => field.label);
  const taken = new Set(labels);
  pivoted.forEach((column, n) => {
    column.at = rows.length + n * values.length;
    const name = column.cells.map(cellText).join(' ');
    for (const { label } of values) labels.push(freeLabel(values.length === 1 ? name : `${name} ${label}`, taken));
  });

  function* cells(): Generator<Cell[]> {
    for (const row of result) {
      const table: Cell[] = new Array(labels.length).fill(emptyText);
      dimensionCells(rows, row).forEach((cell, n) => {
        table[n] = cell;
      });
      for (const cell of row.at(-1) as ResultRow[]) {
        const { at } = found.get(columnId(columns, cell))!;
        values.forEach((field, v) => {
          table[at + v] = valueCell(field, cell, 2 * columns.length + 3 * v);
        });
      }
      yield table;
    }
  }
  return { labels, rows: cells() };
}

function columnId(columns: Dimension[], cell: ResultRow): string {
  return JSON.stringify(cell.slice(0, 2 * columns.length));
}

function orderOf(columns: Dimension[], cell: ResultRow): (number | string)[] {
  return columns.flatMap(({ dates }, n): (number | string)[] => {
    const group = String(cell[2 * n]);
    if (dates || cell[2 * n + 1] === 1) return [0, Number(group), group];
    return [1, 0, group];
  });
}

function byOrder(a: PivotColumn, b: PivotColumn): number {
  for (let n = 0; n < a.order.length; n += 1) {
    const [one, other] = [a.order[n]!, b.order[n]!];
    if (one !== other) return one < other ? -1 : 1;
  }
  return 0;
}

/** Returns a label that no other column has, with a number if necessary. */
function freeLabel(label: string, taken: Set<string>): string {
  let free = label;
  for (let n = 2; taken.has(free); n += 1) free = `${label} (${n})`;
  taken.add(free);
  return free;
}

function dimensionCells(dimensions: Dimension[], row: ResultRow): Cell[] {
  return dimensions.map(({ dates }, n) => {
    const group = row[2 * n];
    if (dates) return dates.cell(Number(group));
    return row[2 * n + 1] === 1 ? { exact: String(group) } : String(group);
  });
}

function valueCell({ decimals }: Field, row: ResultRow, at: number): Cell {
  const [kind, text, double] = row.slice(at, at + 3) as [number, string, number | null];
  switch (kind) {
    case CellKind.exact:
      return { exact: text };
    case CellKind.double:
      // Null: JSON has no such number.
      if (double === null) return emptyText;
      return decimals === undefined ? double : Number(double.toFixed(decimals));
    case CellKind.text:
      return text === '' ? emptyText : text;
    default:
      return emptyText;
  }
}

export function cellText(cell: Cell): string {
  return typeof cell === 'object' ? cell.exact : String(cell);
}
