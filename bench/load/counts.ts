/** Counts by their reason, as of refused messages. */
export type Counts = Record<string, number>;

/** Adds up the counts of each reason. */
export function addedUp(parts: Counts[]): Counts {
  const sums: Counts = {};
  for (const part of parts) {
    for (const [reason, count] of Object.entries(part)) sums[reason] = (sums[reason] ?? 0) + count;
  }
  return sums;
}

export function totalOf(counts: Counts): number {
  return Object.values(counts).reduce((sum, count) => sum + count, 0);
}
