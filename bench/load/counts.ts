/** Counts by their reason, as of refused messages. */
export type Counts = Record<string, number>;

const saidCharsMax = 160;

/** Returns what a server says of a refusal on one line; an ellipsis is where it goes on. */
export function saidOf(text: string): string {
  const line = text.replaceAll(/\s+/g, ' ');
  return line.length > saidCharsMax ? `${line.slice(0, saidCharsMax - 1)}…` : line;
}

/** Adds up the counts of each reason. */
export function addedUp(parts: Counts[]): Counts {
  const sums: Counts = {};
  for (const part of parts) {
    for (const [reason, count] of Object.entries(part)) sums[reason] = (sums[reason] ?? 0) + count;
  }
  return sums;
}

/** Returns a reason without what the server says of it: `429` of `429: Slow down.` */
export function shortReason(reason: string): string {
  return reason.split(': ', 1)[0]!;
}

/** Adds up the counts of reasons that differ only in what the server says; the most frequent one is first. */
export function byShortReason(counts: Counts): [reason: string, count: number][] {
  const short = addedUp(Object.entries(counts).map(([reason, count]) => ({ [shortReason(reason)]: count })));
  return mostFirst(short);
}

export function mostFirst(counts: Counts): [reason: string, count: number][] {
  return Object.entries(counts).sort(([, a], [, b]) => b - a);
}

/** All reasons with their counts, as in `503 (12), ECONNREFUSED at the connect (3)`; `none` without any. */
export function refusedText(counts: Counts): string {
  if (totalOf(counts) === 0) return 'none';
  return mostFirst(counts)
    .map(([reason, count]) => `${reason} (${count})`)
    .join(', ');
}

export function totalOf(counts: Counts): number {
  return Object.values(counts).reduce((sum, count) => sum + count, 0);
}
