/**
 * Finds out whether the insert relay of this host answers. A relay that is frozen, as by a signal, takes inserts and
 * answers none of them, so every insert would wait for its deadline. After an insert that got no answer in time, the
 * relay is asked before the next one; until it answers, inserts go to the server. Used by `client.ts`.
 */
import { once } from 'node:events';
import { get, type IncomingMessage } from 'node:http';
import type { Log } from '../../base/log.ts';

const askMsMax = 500;
/** The time for which inserts go to the server after the relay was asked without an answer. */
const silentMs = 5_000;

export class RelayWatch {
  readonly #url: string;
  readonly #log: Log;
  /** True: an insert through the relay got no answer in time, and the relay was not asked since. */
  #isDoubtful = false;
  /** The monotonic time at which a silent relay is asked again; undefined while the relay answers. */
  #silentUntil: number | undefined;
  #asking: Promise<boolean> | undefined;

  constructor(url: string, log: Log) {
    this.#url = url;
    this.#log = log;
  }

  /** Called when an insert through the relay got no answer in time. The server behind it may be the cause. */
  noAnswer(): void {
    this.#isDoubtful = true;
  }

  /** Returns false while the relay does not answer. Asks only a relay that is in doubt. */
  async answers(): Promise<boolean> {
    if (this.#silentUntil !== undefined && performance.now() < this.#silentUntil) return false;
    if (this.#silentUntil === undefined && !this.#isDoubtful) return true;
    this.#asking ??= this.#ask().finally(() => {
      this.#asking = undefined;
    });
    return await this.#asking;
  }

  async #ask(): Promise<boolean> {
    const reason = await silenceOf(this.#url);
    const wasSilent = this.#silentUntil !== undefined;
    this.#isDoubtful = false;
    this.#silentUntil = reason === undefined ? undefined : performance.now() + silentMs;
    if (reason !== undefined && !wasSilent) this.#log.warn('insert_relay_silent', { reason });
    if (reason === undefined && wasSilent) this.#log.info('insert_relay_back', {});
    return reason === undefined;
  }
}

/** Returns why nothing answers; undefined for an answer, whatever it says. */
async function silenceOf(url: string): Promise<string | undefined> {
  const signal = AbortSignal.timeout(askMsMax);
  try {
    const [answer] = (await once(get(url, { agent: false, signal }), 'response')) as [IncomingMessage];
    answer.on('error', () => {});
    answer.resume();
    return undefined;
  } catch (error) {
    if (signal.aborted) return `The process "inserts" of this host does not answer: end it, and it is started again.`;
    return (error as Error).message;
  }
}
