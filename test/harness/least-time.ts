/** The shortest time of a few tries: a stall of the machine makes one try longer, a fault makes all of them longer. */
export const triesMax = 5;

/** Tries until a try took less than `boundMs`. `attempt` returns its milliseconds. */
export async function leastMs(boundMs: number, attempt: () => Promise<number>): Promise<number> {
  let least = Number.POSITIVE_INFINITY;
  for (let n = 0; n < triesMax && least >= boundMs; n += 1) least = Math.min(least, await attempt());
  return least;
}
