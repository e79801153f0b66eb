/** Prints the result of a scenario as a table, and writes it as a file and a page below bench/results. */
import { loadavg } from 'node:os';
import { type RunBegin, writeResultFile } from './result/result-file.ts';
import type { ServerFacts } from './target/server.ts';

export type Cell = string | number;

/** Lines that were printed since the scenario began. */
let printed: string[] = [];
let begin = beginOfRun();
/** Figures that were measured since the scenario began, by name: an interrupted run writes these. */
const measured = new Map<string, () => unknown>();

const clearLine = '\r\x1b[2K';
/** The last line of the terminal is one that is rewritten. */
let isLineShown = false;

export function say(line: string): void {
  printed.push(line);
  sayProgress(line);
}

/** Prints a line that says how far a run is: no part of its result. */
export function sayProgress(line: string): void {
  clearLive();
  process.stdout.write(`${line}\n`);
}

/** Rewrites the last line of a terminal. The next line that is printed takes its place. */
export function sayLive(text: string): void {
  process.stdout.write(`${clearLine}${text.slice(0, (process.stdout.columns ?? 80) - 1)}`);
  isLineShown = true;
}

export function clearLive(): void {
  if (isLineShown) process.stdout.write(clearLine);
  isLineShown = false;
}

/** Prints a table: columns are as wide as their widest cell, and numbers are aligned to the right. */
export function table(header: string[], rows: Cell[][]): void {
  const cells = rows.map((row) => row.map((cell) => (typeof cell === 'number' ? figure(cell) : cell)));
  const widths = header.map((name, n) => Math.max(name.length, ...cells.map((row) => (row[n] ?? '').length)));
  const line = (row: string[], numeric: boolean[]) =>
    row.map((cell, n) => (numeric[n] ? cell.padStart(widths[n]!) : cell.padEnd(widths[n]!))).join('  ');
  const numeric = header.map((_, n) => typeof rows[0]?.[n] === 'number');
  say(line(header, numeric));
  for (const row of cells) say(line(row, numeric));
}

/** Formats a number with three digits, more when it is whole, and one when it is tiny; its thousands are separated. */
export function figure(value: number): string {
  if (!Number.isFinite(value)) return '-';
  if (value !== 0 && Math.abs(value) < 0.005) return value.toPrecision(1);
  if (Math.abs(value) >= 100 || Number.isInteger(value))
    return Math.round(value).toLocaleString('en').replaceAll(',', ' ');
  return value.toFixed(Math.abs(value) >= 10 ? 1 : 2);
}

export function workersText(count: number): string {
  return count === 1 ? '1 worker' : `${figure(count)} workers`;
}

/** Formats the least and the greatest value, as in "10.2 to 11.0"; one figure when both look the same. */
export function rangeText(values: number[]): string {
  const [least, greatest] = [Math.min(...values), Math.max(...values)].map(figure) as [string, string];
  return least.replace(/\.0+$/, '') === greatest.replace(/\.0+$/, '') ? greatest : `${least} to ${greatest}`;
}

export function median(values: number[]): number {
  const sorted = [...values].sort((a, b) => a - b);
  return (sorted[(sorted.length - 1) >> 1]! + sorted[sorted.length >> 1]!) / 2;
}

/**
 * Names figures that have no result yet: `figures` is called when the run is interrupted before its result. The
 * returned function takes the name back.
 */
export function measuring(name: string, figures: () => unknown): () => void {
  measured.set(name, figures);
  return () => void measured.delete(name);
}

/** Writes what an interrupted run has measured, if anything. Returns false when nothing was. */
export function writeUnfinished(scenario: string, settings: object, server?: ServerFacts): boolean {
  const figures = [...measured].map(([name, read]) => [name, read()] as const);
  const found = figures.filter(([, value]) => !isEmpty(value));
  if (found.length > 0) writeResult(scenario, settings, { isInterrupted: true, ...Object.fromEntries(found) }, server);
  return found.length > 0;
}

function isEmpty(value: unknown): boolean {
  return value === undefined || (Array.isArray(value) && value.length === 0);
}

/** Forgets lines and figures of a scenario that has ended without a result: they are not of the next one. */
export function beginScenario(): void {
  printed = [];
  measured.clear();
  begin = beginOfRun();
}

function beginOfRun(): RunBegin {
  return { startedAt: new Date().toISOString(), loadAverageBefore: loadavg()[0]! };
}

/**
 * The page shows what was printed since the scenario began. `server`: that of `--target`. Returns false when the files
 * cannot be written: the printed table is the result then.
 */
export function writeResult(scenario: string, settings: object, result: object, server?: ServerFacts): boolean {
  try {
    const path = writeResultFile(scenario, { settings, begin, printed, result, server });
    say(`\nwritten to ${path}`);
    say(`page:      ${path.replace(/json$/, 'html')}`);
    return true;
  } catch (error) {
    say(`\nNOT written: ${(error as Error).message}`);
    process.exitCode = 1;
    return false;
  } finally {
    beginScenario();
  }
}
