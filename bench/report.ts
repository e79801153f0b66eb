/** Prints the result of a scenario as a table, and writes the same figures as JSON below bench/results. */
import { mkdirSync, writeFileSync } from 'node:fs';
import { cpus } from 'node:os';
import { join } from 'node:path';
import { root } from '../test/harness/engine.ts';

export type Cell = string | number;

export function say(line: string): void {
  process.stdout.write(`${line}\n`);
}

/** Columns as wide as their widest cell; numbers to the right. */
export function table(header: string[], rows: Cell[][]): void {
  const cells = rows.map((row) => row.map((cell) => (typeof cell === 'number' ? figure(cell) : cell)));
  const widths = header.map((name, n) => Math.max(name.length, ...cells.map((row) => (row[n] ?? '').length)));
  const line = (row: string[], numeric: boolean[]) =>
    row.map((cell, n) => (numeric[n] ? cell.padStart(widths[n]!) : cell.padEnd(widths[n]!))).join('  ');
  const numeric = header.map((_, n) => typeof rows[0]?.[n] === 'number');
  say(line(header, numeric));
  for (const row of cells) say(line(row, numeric));
}

/** Three digits that matter, thousands apart. */
export function figure(value: number): string {
  if (!Number.isFinite(value)) return '-';
  if (Math.abs(value) >= 100 || Number.isInteger(value))
    return Math.round(value).toLocaleString('en').replaceAll(',', ' ');
  return value.toFixed(Math.abs(value) >= 10 ? 1 : 2);
}

export function writeResult(scenario: string, settings: object, result: object): void {
  const directory = join(root, 'bench', 'results');
  mkdirSync(directory, { recursive: true });
  const at = new Date().toISOString();
  const machine = { cores: cpus().length, cpu: cpus()[0]?.model ?? '', node: process.version };
  const path = join(directory, `${scenario}-${at.replace(/[:.]/g, '-')}.json`);
  writeFileSync(path, `${JSON.stringify({ scenario, at, machine, settings, result }, undefined, 2)}\n`);
  say(`\nwritten to ${path}`);
}
