/**
 * Logs that a store does not answer this process. The primary reports an outage once for the host (`store_away`,
 * `store_back`), so a process is silent while the primary does. The process logs `<store>_away` only for a store that
 * the primary reaches, and `<store>_back` afterwards. The clients of the stores call this code.
 */
import type { Log } from './log.ts';

interface StoreOutageDeps {
  store: 'clickhouse' | 'postgres';
  log: Log;
  /** True while the primary reaches the store. */
  isUp: () => boolean;
}

const tickMs = 1_000;
/** Longer than the primary needs to notice an outage. */
const ticksMax = 5;

export class StoreOutage {
  readonly #deps: StoreOutageDeps;
  #timer: NodeJS.Timeout | undefined;
  /** Monotonic time of the first failure in a row; undefined while the store answers this process. */
  #since: number | undefined;
  /** The last failure while the primary reached the store. */
  #failure: object | undefined;
  #failureTicks = 0;
  #isLogged = false;
  /** Calls that the store refused for its load, or answered too late, since the last line. */
  #slow = 0;
  #slowFields: object | undefined;
  #slowTicks = 0;

  constructor(deps: StoreOutageDeps) {
    this.#deps = deps;
  }

  /** Called when the store could not be reached. */
  failed(fields: { reason: string }): void {
    this.#since ??= performance.now();
    if (this.#deps.isUp()) this.#failure = fields;
    this.#watch();
  }

  /** Called when the store answers, but a call took too long or was refused for load. */
  slow(fields: { reason: string }): void {
    this.#slow += 1;
    this.#slowFields = fields;
    this.#watch();
  }

  answered(): void {
    if (this.#since === undefined) return;
    const { store, log } = this.#deps;
    const awayMs = Math.round(performance.now() - this.#since);
    this.#since = undefined;
    this.#failure = undefined;
    this.#failureTicks = 0;
    if (this.#isLogged) log.info(`${store}_back`, { awayMs });
    this.#isLogged = false;
  }

  #watch(): void {
    this.#timer ??= setInterval(() => this.#tick(), tickMs).unref();
  }

  #tick(): void {
    const { store, log, isUp } = this.#deps;
    if (!isUp()) {
      this.#failure = undefined;
      this.#failureTicks = 0;
      this.#slow = 0;
      this.#slowTicks = 0;
    }
    if (this.#failure !== undefined && !this.#isLogged) {
      this.#failureTicks += 1;
      if (this.#failureTicks >= ticksMax) {
        this.#isLogged = true;
        log.warn(`${store}_away`, this.#failure);
      }
    }
    if (this.#slow > 0) {
      this.#slowTicks += 1;
      if (this.#slowTicks >= ticksMax) {
        log.warn(`${store}_slow`, { ...this.#slowFields, calls: this.#slow });
        this.#slow = 0;
        this.#slowTicks = 0;
      }
    }
    if (this.#since !== undefined || this.#slow > 0) return;
    clearInterval(this.#timer);
    this.#timer = undefined;
  }
}
