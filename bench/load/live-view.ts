/**
 * One line that a load rewrites each second in a terminal: time left, rate, latency, refusals, CPU, backlog. Elsewhere
 * a plain line every ten seconds.
 */
import { clearLive, figure, sayLive, sayProgress } from '../report.ts';
import { byShortReason, type Counts, totalOf } from './counts.ts';
import type { Second } from './timeline.ts';

const plainEverySeconds = 10;
const mebibyte = 1_048_576;
const reasonsShown = 3;

export class LiveView {
  readonly #lastsSeconds: number;
  readonly #isTerminal = process.stdout.isTTY === true;

  /** `lastsSeconds` 0: the end is not known. */
  constructor(lastsSeconds: number) {
    this.#lastsSeconds = lastsSeconds;
  }

  show(second: Second): void {
    const text = lineOf(second, this.#lastsSeconds);
    if (this.#isTerminal) sayLive(text);
    else if (second.second % plainEverySeconds === 0) sayProgress(text);
  }

  end(): void {
    clearLive();
  }
}

/** As in `12 × 503, 3 × ECONNRESET`; the rest is one number. */
function reasonsText(refused: Counts): string {
  const all = byShortReason(refused);
  const [shown, rest] = [all.slice(0, reasonsShown), all.slice(reasonsShown)];
  const words = shown.map(([reason, count]) => `${figure(count)} × ${reason}`);
  if (rest.length > 0) words.push(`${figure(rest.reduce((sum, [, count]) => sum + count, 0))} others`);
  return words.join(', ');
}

export function lineOf(second: Second, lastsSeconds: number): string {
  const { rate, refused, broken, waiting, silentSeconds, p50Ms, p99Ms, cpu, gauges } = second;
  // A narrow terminal cuts the end of the line.
  const parts = [`${second.second} s${leftText(lastsSeconds - second.second, lastsSeconds)}`, `${figure(rate)}/s`];
  if (silentSeconds > 0) parts.push(`nothing acknowledged for ${silentSeconds} s`);
  else parts.push(`p50 ${figure(p50Ms)} p99 ${figure(p99Ms)} ms`);
  if (totalOf(refused) > 0) parts.push(`refused ${reasonsText(refused)}`);
  if (broken > 0) parts.push(`${figure(broken)} connection${broken > 1 ? 's' : ''} broke`);
  if (waiting > 0) parts.push(`${figure(waiting)} due`);
  const cores = Object.entries(cpu).filter(([, share]) => share >= 0.05);
  if (cores.length > 0) parts.push(`CPU ${cores.map(([role, share]) => `${role} ${share.toFixed(1)}`).join(', ')}`);
  if (gauges.backlogBytes !== undefined)
    parts.push(`journal ${figure(Math.round((10 * gauges.backlogBytes) / mebibyte) / 10)} MiB`);
  return parts.join(' | ');
}

/** `lastsSeconds` 0: the end is not known. */
function leftText(left: number, lastsSeconds: number): string {
  if (left > 0) return `, ${Math.ceil(left)} s left`;
  return left < 0 && lastsSeconds > 0 ? ', waiting for the last answers' : '';
}
