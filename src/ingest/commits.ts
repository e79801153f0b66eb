/**
 * The commits of a journal, one after the other: messages gather while the last commit is written, and go with the next
 * one. The journal on the disk takes both lanes in one write. Each lane of a replicated stream has commits of its own,
 * because one stream may be slow or full while the other one is not.
 */
import type { Scheduler } from '../base/scheduler.ts';
import { type Commit, Gathering, type LargeMessage } from './commit.ts';
import { LargeQueue } from './large-queue.ts';

/**
 * A commit costs the same for one message and for a hundred. After a commit of so many messages the next commit waits
 * for more. After a smaller commit few more are expected; after a larger one enough have arrived.
 */
export interface Linger {
  msMax: number;
  messagesMin: number;
  messagesMax: number;
}

interface CommitsDeps {
  linger: Linger;
  scheduler: Scheduler;
  /** Large messages that wait have this cap, and the gathered ones another one of the same size. */
  unsyncedBytesMax: number;
  /**
   * Gives the rows of a commit their order numbers before it returns, and writes them. Calls `onEnd` when the messages
   * have their outcome.
   */
  write: (commit: Commit, onEnd: () => void) => void;
  /** Called when no message waits and none is written. */
  onIdle: () => void;
  /** True: the gathered messages must not be written before other ones, which call `flush` then. */
  mustWait?: () => boolean;
}

export class Commits {
  readonly #deps: CommitsDeps;
  /** Messages that were decoded in a thread, and messages with a time to live. */
  readonly large: LargeQueue<LargeMessage>;
  gathering = new Gathering();
  #spare = new Gathering();
  #writing: Commit | undefined;
  #scheduled = false;
  /** True when the last commit was one of `large`. */
  #wasLarge = false;
  #lastMessages = 0;

  constructor(deps: CommitsDeps) {
    this.#deps = deps;
    this.large = new LargeQueue(deps.unsyncedBytesMax);
  }

  get isWriting(): boolean {
    return this.#writing !== undefined;
  }

  get isIdle(): boolean {
    return this.#writing === undefined && !this.#waiting;
  }

  /** Bytes of gathered messages, with those that are written now. */
  get gatheredBytes(): number {
    return this.gathering.bytes + (this.#writing instanceof Gathering ? this.#writing.bytes : 0);
  }

  get unsyncedBytes(): number {
    return this.gathering.bytes + this.large.bytes + (this.#writing?.bytes ?? 0);
  }

  get #waiting(): boolean {
    return this.gathering.messages > 0 || this.large.length > 0;
  }

  /** Called when a message has joined `gathering`. */
  joined(): void {
    if (this.#writing) return;
    if (this.gathering.full) this.flush();
    else if (!this.#scheduled) this.#schedule();
  }

  push(message: LargeMessage): void {
    this.large.push(message, this.gathering.messages > 0);
    if (!this.#writing && !this.#scheduled) this.#schedule();
  }

  /** Begins the next commit, unless one is written. */
  readonly flush = (): void => {
    this.#scheduled = false;
    if (this.#writing || !this.#waiting || this.#deps.mustWait?.() === true) return;
    // Large messages and the gathered ones take turns, so that a stream of large ones delays no other message.
    const isTurn = this.gathering.messages === 0 || !this.#wasLarge;
    const large = isTurn ? this.large.shift() : undefined;
    this.#wasLarge = large !== undefined;
    const commit = large ?? this.gathering;
    if (!large) {
      this.gathering = this.#spare;
      this.large.release();
    }
    this.#writing = commit;
    this.#deps.write(commit, () => this.#end(commit));
  };

  /**
   * Schedules a commit at the end of this turn of the event loop, or a little later when more messages are expected.
   */
  #schedule(): void {
    this.#scheduled = true;
    const { linger, scheduler } = this.#deps;
    const paysToWait = this.#lastMessages >= linger.messagesMin && this.#lastMessages < linger.messagesMax;
    if (linger.msMax > 0 && paysToWait) scheduler.after(linger.msMax, this.flush);
    else scheduler.soon(this.flush);
  }

  #end(commit: Commit): void {
    this.#writing = undefined;
    this.#lastMessages = commit.messages;
    if (commit instanceof Gathering) {
      commit.reset();
      this.#spare = commit;
    }
    if (!this.#waiting) {
      this.#deps.onIdle();
    } else if (!this.#scheduled) {
      if (this.gathering.full) this.flush();
      else this.#schedule();
    }
  }
}
