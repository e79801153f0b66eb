/**
 * Counts the wrong secrets that a network tries at one door, and refuses the network for a while after `wrongMax` of
 * them: tokens and sign-ins of devices (`wrong-credentials.ts`), provisioning keys and strange certificates
 * (`onboarding/`). A try is counted before its answer is given, and a network that is refused meanwhile gets no answer:
 * parallel tries learn no more than sequential ones. Trusted proxies are never refused.
 *
 * The counts hold for all workers and hosts: each worker reports its tries to the home (`bus/home-exchange.ts`), which
 * announces the sums. Another worker gives answers until the sum arrives there. Without the bus each worker counts
 * separately. At the cap the oldest network is evicted for a new one.
 */
import type { Clock } from '../base/clock.ts';
import { Fault } from '../base/errors.ts';
import { FifoMap } from '../base/fifo-map.ts';
import { limits } from '../base/limits.ts';
import { networkOf } from '../base/network.ts';
import type { ReasonOf } from '../base/reasons.ts';
import { type Scheduler, systemScheduler } from '../base/scheduler.ts';
import type { HomeEntry, HomeExchange, HomeTopic } from '../bus/home-exchange.ts';
import { isCount, isName } from '../bus/messages.ts';

interface Window {
  network: string;
  tries: number;
  /** Monotonic milliseconds. */
  endsMs: number;
  isRefused: boolean;
}

interface WrongTriesDeps {
  exchange: HomeExchange;
  /** The topic of the exchange. */
  topic: string;
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

type ReportEntry = [network: string, tries: number];
type SumEntry = [network: string, tries: number, msLeft: number, isRefused: 0 | 1];

export class WrongTries implements HomeTopic {
  readonly #deps: WrongTriesDeps;
  readonly #windows = new FifoMap<string, Window>(limits.wrongTriesNetworksMax);
  /** Tries since the last report. */
  readonly #unreported = new Map<string, number>();
  /** The report that is not confirmed. */
  #sent: ReportEntry[] = [];
  /** The tries that all workers reported to the home, and the networks whose sums have changed; empty elsewhere. */
  readonly #sums = new FifoMap<string, Window>(limits.wrongTriesNetworksMax);
  readonly #changed = new Set<string>();
  /** Ends the sweeps, which run while there are windows. */
  #endSweeps: (() => void) | undefined;

  constructor(deps: WrongTriesDeps) {
    this.#deps = deps;
    deps.exchange.add(deps.topic, this);
  }

  stop(): void {
    this.#endSweeps?.();
  }

  /** Networks that tried wrong secrets within the last window or are refused. */
  get networks(): number {
    return this.#windows.size;
  }

  isRefused(network: string): boolean {
    return this.#window(this.#windows, network)?.isRefused === true;
  }

  /** Throws 429 when the network of the address is refused. */
  check(address: string): void {
    const network = networkOf(address);
    if (this.isRefused(network)) throw this.refusal(network);
  }

  refusal(network: string): Fault {
    const { clock, reason, message } = this.#deps;
    const endsMs = this.#window(this.#windows, network)?.endsMs ?? 0;
    return new Fault(reason, message, Math.max(1, Math.ceil((endsMs - clock.monotonic()) / 1000)));
  }

  /** Counts one wrong try. Called in the same turn as the check after the lookup. */
  wrong(address: string): void {
    if (address === '' || this.#deps.isTrustedProxy(address)) return;
    const network = networkOf(address);
    const window = this.#open(this.#windows, network);
    this.#add(window, 1);
    this.#report(network, 1);
  }

  /** Returns the result of `find`; undefined means that the secret is wrong. Throws 429 when the address is refused. */
  async find<T>(address: string, find: () => Promise<T | undefined>): Promise<T | undefined> {
    this.check(address);
    const found = await find();
    this.check(address);
    if (found === undefined) this.wrong(address);
    return found;
  }

  isReport([network, tries]: HomeEntry): boolean {
    return isName(network) && isCount(tries);
  }

  isSum([network, tries, msLeft, isRefused]: HomeEntry): boolean {
    return isName(network) && isCount(tries) && isCount(msLeft) && (isRefused === 0 || isRefused === 1);
  }

  collect(): HomeEntry[] {
    const entries: ReportEntry[] = [];
    for (const entry of this.#unreported) {
      if (entries.length >= limits.wrongTriesPerMessage) break;
      this.#unreported.delete(entry[0]);
      entries.push(entry);
    }
    this.#sent = entries;
    return entries;
  }

  confirmed(): void {
    this.#sent = [];
    if (this.#unreported.size > 0) this.#deps.exchange.wake();
  }

  lost(): void {
    for (const [network, tries] of this.#sent) this.#report(network, tries);
    this.#sent = [];
  }

  count(entry: HomeEntry): void {
    const [network, tries] = entry as ReportEntry;
    const sum = this.#open(this.#sums, network);
    sum.tries += tries;
    if (!sum.isRefused && sum.tries >= this.#deps.wrongMax) this.#refuse(sum);
    this.#changed.add(network);
  }

  sums(countMax: number): HomeEntry[] {
    const now = this.#deps.clock.monotonic();
    const entries: SumEntry[] = [];
    for (const network of this.#changed) {
      if (entries.length >= countMax) break;
      this.#changed.delete(network);
      const sum = this.#window(this.#sums, network);
      if (sum) entries.push([network, sum.tries, Math.ceil(sum.endsMs - now), sum.isRefused ? 1 : 0]);
    }
    return entries;
  }

  learn(entry: HomeEntry): void {
    const [network, tries, msLeft, isRefused] = entry as SumEntry;
    const window = this.#open(this.#windows, network);
    window.tries = Math.max(window.tries, tries);
    if (window.isRefused) return;
    window.endsMs = this.#deps.clock.monotonic() + Math.min(msLeft, limits.wrongTriesWindowMs);
    if (isRefused === 1) this.#refuse(window, window.endsMs);
  }

  #report(network: string, tries: number): void {
    const { exchange } = this.#deps;
    const known = this.#unreported.get(network);
    const isFull = known === undefined && this.#unreported.size >= limits.wrongTriesNetworksMax;
    if (exchange.isAlone || isFull) return;
    this.#unreported.set(network, (known ?? 0) + tries);
    exchange.wake();
  }

  #add(window: Window, tries: number): void {
    window.tries += tries;
    if (!window.isRefused && window.tries >= this.#deps.wrongMax) this.#refuse(window);
  }

  #refuse(window: Window, endsMs = this.#deps.clock.monotonic() + limits.wrongTriesWindowMs): void {
    window.isRefused = true;
    window.endsMs = endsMs;
    if (this.#windows.get(window.network) === window) this.#deps.onRefused?.(window.network);
  }

  /** Returns the window that counts now, or begins one. */
  #open(windows: FifoMap<string, Window>, network: string): Window {
    const known = this.#window(windows, network);
    if (known) return known;
    const endsMs = this.#deps.clock.monotonic() + limits.wrongTriesWindowMs;
    const window = { network, tries: 0, endsMs, isRefused: false };
    const evicted = windows.set(network, window);
    if (evicted && windows === this.#sums) this.#changed.delete(evicted.network);
    const { scheduler = systemScheduler } = this.#deps;
    this.#endSweeps ??= scheduler.every(limits.wrongTriesSweepMs, () => this.#sweep());
    return window;
  }

  /** Returns the window that counts now; one that has ended is deleted. */
  #window(windows: FifoMap<string, Window>, network: string): Window | undefined {
    const window = windows.get(network);
    if (window === undefined || window.endsMs > this.#deps.clock.monotonic()) return window;
    windows.delete(network);
    if (windows === this.#sums) this.#changed.delete(network);
    return undefined;
  }

  #sweep(): void {
    for (const windows of [this.#windows, this.#sums]) {
      for (const { network } of windows.values()) this.#window(windows, network);
    }
    if (this.#windows.size + this.#sums.size > 0) return;
    this.#endSweeps?.();
    this.#endSweeps = undefined;
  }
}
