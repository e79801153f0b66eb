/**
 * Logs that senders are refused because they have their shares of the journal: at the first refusal, each minute, and
 * when it is over. Other senders are accepted meanwhile, so the host is not refusing.
 */
import type { Log } from '../base/log.ts';
import { ofJournal, type Shared } from './backlog-shares.ts';

const repeatMs = 60_000;
/** The time without a refusal after which the refusing is over. */
const quietMs = 60_000;
/** Senders that are counted apart. */
const sendersMax = 1_000;

export class ShareRefusals {
  readonly #log: Log;
  readonly #shared: Shared;
  readonly #senders = new Set<string>();
  #sender: { kind: string; id: string } | undefined;
  #messages = 0;
  #since = 0;
  #lastAt = 0;
  #saidAt = 0;

  constructor(log: Log, shared = ofJournal) {
    this.#log = log;
    this.#shared = shared;
  }

  /** `now`: monotonic, as that of `check`. */
  add(kind: string, id: string, now: number): void {
    if (this.#messages === 0) this.#since = now;
    this.#messages += 1;
    this.#lastAt = now;
    this.#sender = { kind, id };
    if (this.#senders.size < sendersMax) this.#senders.add(`${kind} ${id}`);
    if (this.#messages === 1) this.#say(now);
  }

  /** `areShared`: senders have shares now, because more than half of the journal waits. */
  check(now: number, areShared: boolean): void {
    if (this.#messages === 0) return;
    if (!areShared || now - this.#lastAt >= quietMs) this.#end(now);
    else if (now - this.#saidAt >= repeatMs) this.#say(now);
  }

  #say(now: number): void {
    this.#saidAt = now;
    const message = `ClickHouse takes less than comes in. Senders that have their share of ${this.#shared.what} get 429, others are accepted.`;
    this.#log.warn('ingest_share_refusing', {
      reason: this.#shared.reason,
      message,
      ...this.#sender,
      senders: this.#senders.size,
      ...this.#totals(now),
    });
  }

  #end(now: number): void {
    this.#log.info('ingest_share_accepting', { senders: this.#senders.size, ...this.#totals(now) });
    this.#senders.clear();
    this.#messages = 0;
  }

  #totals(now: number): { seconds: number; messages: number } {
    return { seconds: Math.round((now - this.#since) / 1000), messages: this.#messages };
  }
}
