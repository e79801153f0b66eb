/**
 * The life of a generator process, seen from inside: it receives one order, connects, waits for the start of all
 * processes, sends, and reports one result. Its parent may stop the load before its time. Its connections stay open
 * until its parent ends it, and it ends with its parent, so an interrupted run leaves none behind.
 * `processes.ts` is the other side.
 */

/** The message of a connected process names its open connections; all processes begin to send with `beginNote`. */
export interface ConnectedNote {
  connected: number;
}
export const beginNote = 'begin';
/** Ends the load at once: no more messages, and no more waiting for answers. */
export const stopNote = 'stop';
/** Names the one member of a message that reports a second while the run goes on. */
export const secondNote = 'second';

/** What a run learns of its parent. */
export interface Course {
  /** Called with the number of open connections; resolves when all processes of the run are connected. */
  connected(open: number): Promise<void>;
  /** Resolves when the load is to end before its time. */
  stopped: Promise<void>;
}

type RunOrder<Order, Result> = (order: Order, course: Course) => Promise<Result>;

export function serveOrder<Order, Result extends object>(run: RunOrder<Order, Result>): void {
  let [begin, stop] = [() => {}, () => {}];
  const begun = new Promise<void>((resolve) => {
    begin = resolve;
  });
  const stopped = new Promise<void>((resolve) => {
    stop = resolve;
  });
  const connected = (open: number) => {
    process.send!({ connected: open } satisfies ConnectedNote);
    return begun;
  };
  process.once('message', (order: Order) => {
    process.on('message', (note) => (note === stopNote ? stop() : begin()));
    run(order, { connected, stopped }).then(
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

/** The tenths of a process, as it reports them. */
export interface Counted {
  tenths: number[];
  startedAtMs: number;
}

/** Returns how many were counted between two moments (Unix time), to a tenth of a second. */
export function countBetween(counted: Counted[], fromMs: number, toMs: number): number {
  let count = 0;
  for (const { tenths, startedAtMs } of counted) {
    const [from, to] = [fromMs, toMs].map((at) => Math.round((at - startedAtMs) / tenthMs));
    for (let tenth = Math.max(0, from!); tenth < to!; tenth += 1) count += tenths[tenth] ?? 0;
  }
  return count;
}
