/**
 * Divides long work into turns of the event loop. In one iteration of the loop only one of the works that wait goes on,
 * so that many of them together delay other work no longer than a single one.
 */
import { limits } from './limits.ts';

const waiting: (() => void)[] = [];

/** Resolves in a later iteration of the loop, after the works that wait already. */
export function nextTurn(): Promise<void> {
  return new Promise((resolve) => {
    if (waiting.push(resolve) === 1) setImmediate(goOn);
  });
}

function goOn(): void {
  const resolve = waiting.shift();
  // An immediate that is made here runs in the next iteration, after the events of sockets.
  if (waiting.length > 0) setImmediate(goOn);
  resolve?.();
}

/** Calls `work` for one item after the other, in turns of `limits.loopTurnMs`. */
export async function inTurns<T>(items: Iterable<T>, work: (item: T, index: number) => void): Promise<void> {
  let endsAt = performance.now() + limits.loopTurnMs;
  let index = 0;
  for (const item of items) {
    work(item, index);
    index += 1;
    if (performance.now() < endsAt) continue;
    await nextTurn();
    endsAt = performance.now() + limits.loopTurnMs;
  }
}
