/**
 * Passes timers as a parameter beside the clock, so that a simulation can pass time and choose the order of events
 * (`test/world/`).
 */
/** Resolves after the time, or earlier when the signal is aborted. */
export type Sleep = (ms: number, signal?: AbortSignal) => Promise<void>;

export interface Scheduler {
  readonly sleep: Sleep;
  /** Calls `run` once after the time, unless the returned function is called before. */
  after(ms: number, run: () => void): () => void;
  /** Calls `run` at this interval until the returned function is called. The interval keeps no process running. */
  every(ms: number, run: () => void): () => void;
  /** Calls `run` at the end of this turn of the event loop. */
  soon(run: () => void): void;
}

export const systemScheduler: Scheduler = {
  sleep: (ms, signal) =>
    new Promise((resolve) => {
      const end = (): void => {
        clearTimeout(timeout);
        signal?.removeEventListener('abort', end);
        resolve();
      };
      const timeout = setTimeout(end, ms);
      if (signal?.aborted) end();
      else signal?.addEventListener('abort', end);
    }),
  after(ms, run) {
    const timeout = setTimeout(run, ms);
    return () => clearTimeout(timeout);
  },
  every(ms, run) {
    const interval = setInterval(run, ms).unref();
    return () => clearInterval(interval);
  },
  soon(run) {
    setImmediate(run);
  },
};
