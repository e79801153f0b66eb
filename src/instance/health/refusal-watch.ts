/**
 * Logs the refusing of telemetry as a state of this host, whatever the number of its workers: `ingest_refusing` at the
 * beginning, at another reason and each minute, `ingest_accepting` at the end, with length and number of messages. The
 * primary passes the reports of its workers once a second.
 */
import type { Log } from '../../base/log.ts';
import { type Reason, reasonText } from '../../base/reasons.ts';

/** Why a worker accepts no telemetry now. */
export interface Refusal {
  reason: Reason;
  /** A sentence that says what to change. */
  message: string;
}

export interface WorkerRefusals {
  worker: number;
  refusal: Refusal | undefined;
  /** Messages refused since the start of the worker, by reason. */
  refused: Partial<Record<Reason, number>>;
}

const repeatMs = 60_000;
/** Refusals with a shorter pause between them count as one. */
const pauseMs = 5_000;

interface State extends Refusal {
  since: number;
  lastAt: number;
  loggedAt: number;
  messages: number;
}

export class RefusalWatch {
  readonly #log: Log;
  readonly #now: () => number;
  readonly #counted = new Map<number, WorkerRefusals['refused']>();
  #state: State | undefined;
  /** True when workers refused at the last check, whether or not a message came. */
  #wasRefusing = false;
  /** Called once, at the end of the refusal that runs now. */
  onAccepting: (() => void) | undefined;

  /** `now`: a monotonic clock in milliseconds. */
  constructor(log: Log, now: () => number = () => performance.now()) {
    this.#log = log;
    this.#now = now;
  }

  /** `workers`: all workers that take connections now. */
  check(workers: readonly WorkerRefusals[]): void {
    // While no worker serves, nothing is refused and nothing is accepted.
    if (workers.length === 0) return;
    const now = this.#now();
    const { messages, reason } = this.#count(workers);
    const refusing = workers.filter(({ refusal }) => refusal !== undefined);
    const current = refusing[0]?.refusal ?? (reason && { reason, message: reasonText(reason) });
    // One check may meet a worker that is late for a moment and refuses no message.
    const counts = messages > 0 || (refusing.length > 0 && this.#wasRefusing);
    this.#wasRefusing = refusing.length > 0;
    if (current !== undefined && (counts || (this.#state !== undefined && refusing.length > 0))) {
      this.#refuses(current, messages, { workers: workers.length, refusing: refusing.length }, now);
    } else if (this.#state !== undefined && now - this.#state.lastAt >= pauseMs) {
      const { reason, since, lastAt, messages } = this.#state;
      this.#state = undefined;
      this.#log.info('ingest_accepting', { after: reason, seconds: seconds(lastAt - since), messages });
      this.onAccepting?.();
      this.onAccepting = undefined;
    }
  }

  #refuses(current: Refusal, messages: number, workers: { workers: number; refusing: number }, now: number): void {
    const begun = this.#state === undefined;
    this.#state ??= { ...current, since: now, lastAt: now, loggedAt: now, messages: 0 };
    const state = this.#state;
    const isOther = state.reason !== current.reason;
    Object.assign(state, current);
    state.messages += messages;
    state.lastAt = now;
    if (!begun && !isOther && now - state.loggedAt < repeatMs) return;
    state.loggedAt = now;
    const { reason, message, since } = state;
    const length = { seconds: seconds(now - since), messages: state.messages };
    this.#log.warn('ingest_refusing', { reason, message, ...workers, ...length });
  }

  /** Returns the messages that were refused since the last check, and the most frequent reason of them. */
  #count(workers: readonly WorkerRefusals[]): { messages: number; reason: Reason | undefined } {
    const since = new Map<Reason, number>();
    for (const { worker, refused } of workers) {
      const before = this.#counted.get(worker) ?? {};
      for (const [name, count] of Object.entries(refused)) {
        const reason = name as Reason;
        // A worker that was started again counts from zero.
        const more = count - (before[reason] ?? 0);
        const added = more < 0 ? count : more;
        if (added > 0) since.set(reason, (since.get(reason) ?? 0) + added);
      }
      this.#counted.set(worker, refused);
    }
    const [most] = [...since].sort(([, a], [, b]) => b - a);
    return { messages: [...since.values()].reduce((sum, count) => sum + count, 0), reason: most?.[0] };
  }
}

function seconds(ms: number): number {
  return Number((ms / 1000).toFixed(1));
}
