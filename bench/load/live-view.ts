/**
 * One line that a load rewrites each second in a terminal: rate, latency, refusals, CPU, backlog, time left. Elsewhere
 * a plain line every ten seconds.
 */
import { figure, say } from '../report.ts';
import type { Second } from './timeline.ts';

const plainEverySeconds = 10;
const clearLine = '\r\x1b[2K';
const mebibyte = 1_048_576;

export class LiveView {
  readonly #lastsSeconds: number;
  readonly #isTerminal = process.stdout.isTTY === true;

  /** `lastsSeconds` 0: the end is not known. */
  constructor(lastsSeconds: number) {
    this.#lastsSeconds = lastsSeconds;
  }

  show(second: Second): void {
    const text = lineOf(second, this.#lastsSeconds);
    if (this.#isTerminal) process.stdout.write(`${clearLine}${text.slice(0, (process.stdout.columns ?? 80) - 1)}`);
    else if (second.second % plainEverySeconds === 0) say(text);
  }

  end(): void {
    if (this.#isTerminal) process.stdout.write(clearLine);
  }
}

function lineOf(second: Second, lastsSeconds: number): string {
  const { rate, refused, waiting, p50Ms, p99Ms, cpu, gauges } = second;
  const parts = [`${second.second} s`, `${figure(rate)}/s`, `p50 ${figure(p50Ms)} p99 ${figure(p99Ms)} ms`];
  if (refused > 0) parts.push(`${figure(refused)} refused`);
  if (waiting > 0) parts.push(`${figure(waiting)} due`);
  const cores = Object.entries(cpu).filter(([, share]) => share >= 0.05);
  if (cores.length > 0) parts.push(`CPU ${cores.map(([role, share]) => `${role} ${share.toFixed(1)}`).join(', ')}`);
  if (gauges.backlogBytes !== undefined) parts.push(`journal ${figure(gauges.backlogBytes / mebibyte)} MiB`);
  const left = lastsSeconds - second.second;
  if (left > 0) parts.push(`${Math.ceil(left)} s left`);
  else if (left < 0 && lastsSeconds > 0) parts.push('waiting for the last answers');
  return parts.join(' | ');
}
