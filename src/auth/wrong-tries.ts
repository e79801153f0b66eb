/**
 * Counts the wrong secrets that a network tries at one door, and refuses the network for a while after `wrongMax` of
 * them: tokens and sign-ins of devices (`wrong-credentials.ts`), provisioning keys and strange certificates
 * (`onboarding/`). A try is counted before its answer is given, and a network that is refused meanwhile gets no answer:
 * parallel tries learn no more than sequential ones. Trusted proxies are never refused.
 *
 * The counts hold for all workers and hosts on the bus. Another worker gives answers until the count arrives there: at
 * most `tallyMsPerWorker` later for each worker. Without the bus each worker counts separately. At the cap the oldest
 * network is evicted for a new one.
 */
import type { Clock } from '../base/clock.ts';
import { Fault } from '../base/errors.ts';
import { FifoMap } from '../base/fifo-map.ts';
import { limits } from '../base/limits.ts';
import { networkOf } from '../base/network.ts';
import type { ReasonOf } from '../base/reasons.ts';
import { type Scheduler, systemScheduler } from '../base/scheduler.ts';
import type { Bus } from '../bus/bus.ts';
import { Tallies, type Tally } from '../bus/tallies.ts';

interface Window {
  network: string;
  tries: number;
  /** Monotonic milliseconds. */
  endsMs: number;
  isRefused: boolean;
}

interface WrongTriesDeps {
  bus: Bus;
  /** The workers of all hosts; absent: one. */
  fleetWorkers?: (() => number) | undefined;
  channel: string;
  /** Wrong tries of a network within `wrongTriesWindowMs` after which the network is refused. */
  wrongMax: number;
  reason: ReasonOf<429>;
  message: string;
  isTrustedProxy: (address: string) => boolean;
  clock: Clock;
  scheduler?: Scheduler;
  /** Called once for each refusal of a network. */
  onRefused?: (network: string) => void;
}

const oneTry = [1];

export class WrongTries {
  readonly #deps: WrongTriesDeps;
  readonly #tallies: Tallies<'network'>;
  readonly #tally: Tally;
  readonly #windows = new FifoMap<string, Window>(limits.wrongTriesNetworksMax);
  /** Ends the sweeps, which run while there are windows. */
  #endSweeps: (() => void) | undefined;

  constructor(deps: WrongTriesDeps) {
    this.#deps = deps;
    this.#tallies = new Tallies<'network'>({
      bus: deps.bus,
      channel: deps.channel,
      groups: ['network'],
      countsOfOwner: oneTry.length,
      fleetWorkers: deps.fleetWorkers,
      ownersPerMessage: limits.wrongTriesPerMessage,
      onCounts: (_, network, [tries = 0]) => this.#count(String(network), tries),
    });
    this.#tally = this.#tallies.tally('network');
  }

  async start(): Promise<void> {
    await this.#tallies.start();
  }

  stop(): void {
    this.#tallies.stop();
    this.#endSweeps?.();
  }

  /** Networks that tried wrong secrets within the last window or are refused. */
  get networks(): number {
    return this.#windows.size;
  }

  isRefused(network: string): boolean {
    return this.#window(network)?.isRefused === true;
  }

  /** Throws 429 when the network of the address is refused. */
  check(address: string): void {
    const network = networkOf(address);
    if (this.isRefused(network)) throw this.refusal(network);
  }

  refusal(network: string): Fault {
    const { clock, reason, message } = this.#deps;
    const endsMs = this.#window(network)?.endsMs ?? 0;
    return new Fault(reason, message, Math.max(1, Math.ceil((endsMs - clock.monotonic()) / 1000)));
  }

  /** Counts one wrong try. Called in the same turn as the check after the lookup. */
  wrong(address: string): void {
    if (address === '' || this.#deps.isTrustedProxy(address)) return;
    const network = networkOf(address);
    this.#tally.add(network, oneTry);
    this.#count(network, 1);
    this.#tallies.publish();
  }

  /** Returns what `look` finds; undefined means that the secret is wrong. Throws 429 when the address is refused. */
  async look<T>(address: string, look: () => Promise<T | undefined>): Promise<T | undefined> {
    this.check(address);
    const found = await look();
    this.check(address);
    if (found === undefined) this.wrong(address);
    return found;
  }

  #count(network: string, tries: number): void {
    const { clock, scheduler = systemScheduler, wrongMax, onRefused } = this.#deps;
    let window = this.#window(network);
    if (window === undefined) {
      window = { network, tries: 0, endsMs: clock.monotonic() + limits.wrongTriesWindowMs, isRefused: false };
      this.#windows.set(network, window);
      this.#endSweeps ??= scheduler.every(limits.wrongTriesSweepMs, () => this.#sweep());
    }
    window.tries += tries;
    if (window.isRefused || window.tries < wrongMax) return;
    window.isRefused = true;
    window.endsMs = clock.monotonic() + limits.wrongTriesWindowMs;
    onRefused?.(network);
  }

  /** The window that counts now; one that has ended is deleted. */
  #window(network: string): Window | undefined {
    const window = this.#windows.get(network);
    if (window === undefined || window.endsMs > this.#deps.clock.monotonic()) return window;
    this.#windows.delete(network);
    return undefined;
  }

  #sweep(): void {
    for (const { network } of this.#windows.values()) this.#window(network);
    if (this.#windows.size > 0) return;
    this.#endSweeps?.();
    this.#endSweeps = undefined;
  }
}
