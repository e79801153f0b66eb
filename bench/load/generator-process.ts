/**
 * The life of a generator process, seen from inside: it receives one order, connects, waits for the start of all
 * processes, sends, and reports one result. Its connections stay open until its parent ends it, and it ends with its
 * parent, so an interrupted run leaves none behind.
 * `processes.ts` is the other side.
 */

/** The message of a connected process; `beginNote` is the answer, with which all processes begin to send. */
const connectedNote = 'connected';
export const beginNote = 'begin';
/** Names the one member of a message that reports a second while the run goes on. */
export const secondNote = 'second';

/** `connected` resolves when all processes of the run are connected. */
type RunOrder<Order, Result> = (order: Order, connected: () => Promise<void>) => Promise<Result>;

export function serveOrder<Order, Result extends object>(run: RunOrder<Order, Result>): void {
  const connected = () => {
    return new Promise<void>((resolve) => {
      process.once('message', () => resolve());
      process.send!(connectedNote);
    });
  };
  process.once('message', (order: Order) => {
    run(order, connected).then(
      (result) => process.send!(result),
      (error: Error) => {
        process.stderr.write(`${error.stack}\n`);
        process.exit(1);
      },
    );
  });
  process.on('disconnect', () => process.exit(1));
}

const tenthMs = 100;

/** Counts acknowledgements by tenth of a second, from its making on. */
export class Tenths {
  readonly counts: number[] = [];
  /** Unix time. */
  readonly startedAtMs = Date.now();
  readonly #startedAt = performance.now();

  add(now: number): void {
    const tenth = Math.floor((now - this.#startedAt) / tenthMs);
    this.counts[tenth] = (this.counts[tenth] ?? 0) + 1;
  }
}

/** Returns how many were counted between two moments (Unix time), to a tenth of a second. */
export function countBetween(
  counted: { tenths: number[]; startedAtMs: number }[],
  fromMs: number,
  toMs: number,
): number {
  let count = 0;
  for (const { tenths, startedAtMs } of counted) {
    const [from, to] = [fromMs, toMs].map((at) => Math.round((at - startedAtMs) / tenthMs));
    for (let tenth = Math.max(0, from!); tenth < to!; tenth += 1) count += tenths[tenth] ?? 0;
  }
  return count;
}
