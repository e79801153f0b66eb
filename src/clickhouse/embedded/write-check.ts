/**
 * Detects that the engine failed to write a file. chDB ignores such a failure: on a full disk chDB stores a part of
 * empty files and acknowledges the insert, and replaces good parts by the empty result of a merge. Only the counter of
 * failed writes shows the failure. `server.ts` ends the process after a failed write. The next start sets damaged parts
 * aside and loads the sources of a merge, which the engine keeps for minutes.
 */
import { Batches } from '../../base/batches.ts';
import { type Engine, ownRun } from './engine.ts';

const failedQuery =
  "SELECT sum(value) AS failed FROM system.events WHERE event = 'WriteBufferFromFileDescriptorWriteFailed'";
/** Statements that write no table. */
const readers = new Set(['SELECT', 'WITH', 'SHOW', 'DESCRIBE', 'DESC', 'EXISTS', 'EXPLAIN', 'KILL', 'SET', 'USE']);

export class WriteCheck {
  readonly #engine: Pick<Engine, 'run'>;
  #before = 0;
  #hasFailed = false;
  #onFailed!: () => void;
  /** Resolves at the first failed write after `begin`. */
  readonly failed = new Promise<void>((resolve) => {
    this.#onFailed = resolve;
  });
  #waiting: { resolve: () => void; reject: (error: unknown) => void }[] = [];
  readonly #batches = new Batches(
    () => this.#waiting.length > 0,
    () => this.#check(),
  );

  constructor(engine: Pick<Engine, 'run'>) {
    this.#engine = engine;
  }

  /**
   * Called when the engine has opened. Writes that failed before do not count: on a disk that is full at the start the
   * engine starts no insert and no merge, but serves reads.
   */
  async begin(): Promise<void> {
    this.#before = await this.#count();
  }

  /** Returns true when no write has failed until now. Callers during a read of the counter share the next read. */
  async isIntact(): Promise<boolean> {
    if (this.#hasFailed) return false;
    await new Promise<void>((resolve, reject) => {
      this.#waiting.push({ resolve, reject });
      this.#batches.wake();
    });
    return !this.#hasFailed;
  }

  async #check(): Promise<void> {
    const asked = this.#waiting.splice(0);
    try {
      if ((await this.#count()) > this.#before) {
        this.#hasFailed = true;
        this.#onFailed();
      }
      for (const { resolve } of asked) resolve();
    } catch (error) {
      for (const { reject } of asked) reject(error);
    }
  }

  async #count(): Promise<number> {
    const { body } = await this.#engine.run(ownRun(failedQuery, 'TabSeparated'));
    return Number(new TextDecoder().decode(body));
  }
}

/** `verb`: the first word of a statement. */
export function writesTables(verb: string): boolean {
  return !readers.has(verb);
}
