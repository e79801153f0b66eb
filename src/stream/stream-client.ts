/**
 * The connection to the servers of the stream for the life of a process. It connects in the background and again after
 * each loss, makes and checks the streams, and says why they are not usable.
 */
import { StartError } from '../base/errors.ts';
import type { Log } from '../base/log.ts';
import { type Lane, late, live } from '../journal/journal.ts';
import { reconnectMs, streamConnection, tryServers } from './connect.ts';
import { connectReason, noMajority } from './connect-reason.ts';
import { StreamLink } from './stream-link.ts';
import type { StreamSettings } from './stream-names.ts';

/** A connection that is lost for so long is tried again apart, to learn why it does not return. */
const lostMsMax = 4_000;
/** After so many times of `lostMsMax` the settings of the streams are checked again: about half a minute. */
const roundsOfCheck = 8;

export class StreamClient {
  readonly #settings: StreamSettings;
  readonly #log: Log;
  readonly #name: string;
  /** Makes and checks the streams, over a new connection. */
  readonly #prepare: (link: StreamLink) => Promise<void>;
  /** Throws a StartError when the streams do not keep the promise any more. */
  readonly #check: (link: StreamLink) => Promise<void>;
  #link: StreamLink | undefined;
  #failure: string | undefined = 'not connected yet';
  /** Why a connection that was lost does not return. */
  #lost: string | undefined;
  #closed = false;
  #running: Promise<void> = Promise.resolve();
  #wake: () => void = () => {};
  /**
   * Why the stream of a lane, or its consumer, is missing and cannot be made (`stream-watch.ts`): no worker would ship
   * the frames.
   */
  readonly unmade: [string | undefined, string | undefined] = [undefined, undefined];

  constructor(
    settings: StreamSettings,
    log: Log,
    name: string,
    prepare: (link: StreamLink) => Promise<void>,
    check: (link: StreamLink) => Promise<void> = async () => {},
  ) {
    this.#settings = settings;
    this.#log = log;
    this.#name = name;
    this.#prepare = prepare;
    this.#check = check;
  }

  /** Connects until it succeeds. Resolves after the first try. */
  start(): Promise<void> {
    return new Promise((resolve) => {
      this.#running = this.#run(resolve);
    });
  }

  /** Undefined until the first connection. A connection that is lost returns by itself. */
  get link(): StreamLink | undefined {
    return this.#link;
  }

  /** Why one of the two streams is not usable; undefined when both were found usable. */
  get failure(): string | undefined {
    return this.failureOf(live) ?? this.failureOf(late);
  }

  /** Why the stream of one lane is not usable; undefined when it was found usable. */
  failureOf(lane: Lane): string | undefined {
    return this.unmade[lane] ?? this.#failure ?? this.#link?.shortfall;
  }

  /** Why the servers have not answered for as long as a message waits; undefined while they answer. */
  get silence(): string | undefined {
    const link = this.#link;
    if (link === undefined || link.silentMs < this.#settings.ackMsMax) return undefined;
    // While a server without a majority is left for another one, there is no connection for a moment, and no reason.
    if (link.isConnected || this.#lost === undefined) return noMajority;
    return `no server can be reached: ${this.#lost}`;
  }

  /** Checks again what an operator may have changed since the connection was made. */
  async checkAgain(): Promise<void> {
    const link = this.#link;
    if (link?.isConnected !== true) return;
    try {
      await this.#check(link);
      if (this.#failure !== undefined) this.#log.info('stream_ready', {});
      this.#failure = undefined;
    } catch (error) {
      // Messages and readers notice servers that do not answer.
      if (error instanceof StartError) this.#noteFailure(error.message);
    }
  }

  /** Makes and checks the streams again, because one is missing. */
  async prepareAgain(): Promise<void> {
    if (this.#link) await this.#prepare(this.#link);
  }

  async close(): Promise<void> {
    this.#closed = true;
    this.#wake();
    await this.#running;
    await this.#link?.close();
  }

  async #run(onTried: () => void): Promise<void> {
    let opened: StreamLink | undefined;
    while (!this.#closed) {
      try {
        opened ??= await StreamLink.open(this.#settings, this.#name);
        await this.#prepare(opened);
        opened.answered('prepare');
        this.#link = opened;
        if (this.#failure !== undefined) this.#log.info('stream_ready', {});
        this.#failure = undefined;
        onTried();
        void this.#supervise(opened);
        return;
      } catch (error) {
        opened?.failed('prepare', error);
        this.#noteFailure(connectReason(error));
        onTried();
      }
      await this.#pause(4 * reconnectMs);
    }
    await opened?.close();
  }

  #noteFailure(failure: string): void {
    if (failure !== this.#failure) this.#log.warn('stream_not_ready', { reason: failure });
    this.#failure = failure;
  }

  /** Explains losses of the connection, and checks the streams less often. */
  async #supervise(link: StreamLink): Promise<void> {
    for (let rounds = 1; !this.#closed; rounds += 1) {
      await this.#pause(lostMsMax);
      if (this.#closed) return;
      if (link.isConnected) this.#lost = undefined;
      else if (link.silentMs >= lostMsMax) await this.#explainLoss();
      // A server that was reloaded with a larger limit names it to new connections only.
      if (link.isConnected && link.shortfall !== undefined) void link.connection.reconnect();
      if (rounds % roundsOfCheck === 0) await this.checkAgain();
    }
  }

  /** Tries another connection while the present one is lost: the client does not say why its own tries fail. */
  async #explainLoss(): Promise<void> {
    try {
      await tryServers(streamConnection(this.#settings, this.#name));
    } catch (error) {
      const lost = connectReason(error);
      if (lost !== this.#lost) this.#log.warn('stream_not_connected', { reason: lost });
      this.#lost = lost;
    }
  }

  /** `close` ends it. */
  async #pause(ms: number): Promise<void> {
    await new Promise<void>((resolve) => {
      const timer = setTimeout(resolve, ms);
      timer.unref();
      const wake = () => {
        clearTimeout(timer);
        resolve();
      };
      this.#wake = wake;
    });
  }
}
