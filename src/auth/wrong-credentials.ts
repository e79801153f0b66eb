/**
 * Wrong credentials of devices, counted by network address, over HTTP and MQTT alike: an address that gave `wrongMax`
 * of them within a minute is refused for a minute, before anything is looked up. Credentials that were right from that
 * address go on being served: of a thousand devices behind one NAT, one with a wrong token does not stop the others. An
 * attacker behind the same address can guess at those, and at no others. Trusted proxies are not counted.
 *
 * The counts are those of all workers and hosts on the bus, up to `wrongCredentialsTellMs`; without the bus each worker
 * counts alone. What was right is known to the worker that saw it, and to all when the address is refused.
 */
import { createHash } from 'node:crypto';
import type { Clock } from '../base/clock.ts';
import { Fault } from '../base/errors.ts';
import { FifoMap } from '../base/fifo-map.ts';
import { limits } from '../base/limits.ts';
import type { Counter, Metrics } from '../base/metrics.ts';
import { networkOf } from '../base/network.ts';
import type { Bus } from '../bus/bus.ts';
import { isListOf, isObject, isText, isWhole, readMessage } from '../bus/messages.ts';
import { RightCredentials } from './right-credentials.ts';

const channel = 'wrong-credentials';
const windowMs = 60_000;

/** Network → wrong tries since the last message, and digests of what is right from a network that is refused now. */
interface Message {
  from: string;
  wrong: [network: string, tries: number][];
  right: [network: string, digests: string[]][];
}

function isMessage(value: unknown): value is Message {
  return (
    isObject(value) && isText(value['from']) && isListOf(value['wrong'], isWrong) && isListOf(value['right'], isRight)
  );
}

function isWrong(value: unknown): value is [string, number] {
  return Array.isArray(value) && value.length === 2 && isText(value[0]) && isWhole(value[1]);
}

function isRight(value: unknown): value is [string, string[]] {
  return Array.isArray(value) && value.length === 2 && isText(value[0]) && isListOf(value[1], isText);
}

interface Window {
  network: string;
  tries: number;
  endsMs: number;
  isRefused: boolean;
}

export interface WrongCredentialsDeps {
  bus: Bus;
  /** Distinct for each worker. */
  node: string;
  /** Within a minute. */
  wrongMax: number;
  isTrustedProxy: (address: string) => boolean;
  clock: Clock;
  metrics: Metrics;
}

export class WrongCredentials {
  readonly #deps: WrongCredentialsDeps;
  readonly #windows = new FifoMap<string, Window>(limits.wrongCredentialsAddressesMax);
  readonly #right = new RightCredentials();
  readonly #refused: Counter;
  #untold = new Map<string, number>();
  #untoldRight = new Set<string>();
  #timer: NodeJS.Timeout | undefined;
  /** Runs while there are windows. */
  #sweepTimer: NodeJS.Timeout | undefined;
  #leave = () => {};

  constructor(deps: WrongCredentialsDeps) {
    this.#deps = deps;
    const { metrics } = deps;
    this.#refused = metrics.counter(
      'wrong_credentials_refused_total',
      'Requests and sign-ins refused because their address gave too many wrong credentials.',
    );
    metrics.observed(
      'wrong_credentials_addresses',
      'Addresses that gave wrong credentials within the last minute or are refused.',
      () => this.#windows.size,
      'max',
    );
  }

  async start(): Promise<void> {
    this.#leave = await this.#deps.bus.subscribe(channel, (payload) => this.#receive(payload));
  }

  stop(): void {
    this.#leave();
    clearTimeout(this.#timer);
    clearInterval(this.#sweepTimer);
  }

  /** No address gave wrong credentials lately: nothing is refused, and nothing needs to be noted of known devices. */
  get isCalm(): boolean {
    return this.#windows.size === 0;
  }

  /** Throws the refusal of an address that is refused, unless these credentials were right from it before. */
  check(address: string, credentials: string): void {
    const network = networkOf(address, 4);
    const window = this.#window(network);
    if (!window?.isRefused || this.#right.has(network, credentials)) return;
    this.#refused.add(1);
    const seconds = Math.max(1, Math.ceil((window.endsMs - this.#deps.clock.monotonic()) / 1000));
    const message =
      'Too many wrong credentials from this address: check the token of each device behind it, and try again later.';
    throw new Fault('wrong_credentials', message, seconds);
  }

  /** Of known credentials while the worker is not calm: false = refused. Notes what is right, should a refusal come. */
  mayUse(address: string, credentials: string): boolean {
    const network = networkOf(address, 4);
    if (this.#window(network)?.isRefused) return this.#right.has(network, credentials);
    this.#right.add(network, credentials);
    return true;
  }

  right(address: string, credentials: string): void {
    if (address !== '') this.#right.add(networkOf(address, 4), credentials);
  }

  wrong(address: string): void {
    if (address === '' || this.#deps.isTrustedProxy(address)) return;
    const network = networkOf(address, 4);
    this.#untold.set(network, (this.#untold.get(network) ?? 0) + 1);
    this.#count(network, 1);
    this.#tellSoon();
  }

  #count(network: string, tries: number): void {
    const { clock, wrongMax } = this.#deps;
    let window = this.#window(network);
    if (window === undefined) {
      window = { network, tries: 0, endsMs: clock.monotonic() + windowMs, isRefused: false };
      this.#windows.set(network, window);
      this.#sweepTimer ??= setInterval(() => this.#sweep(), limits.wrongCredentialsSweepMs).unref();
    }
    window.tries += tries;
    if (window.isRefused || window.tries < wrongMax) return;
    window.isRefused = true;
    window.endsMs = clock.monotonic() + windowMs;
    this.#untoldRight.add(network);
    this.#tellSoon();
  }

  /** The one that counts; an old one is forgotten. */
  #window(network: string): Window | undefined {
    const window = this.#windows.get(network);
    if (window === undefined || window.endsMs > this.#deps.clock.monotonic()) return window;
    this.#windows.delete(network);
    return undefined;
  }

  /** Forgets windows that have ended: without any, the worker is calm again. */
  #sweep(): void {
    for (const { network } of this.#windows.values()) this.#window(network);
    if (this.#windows.size > 0) return;
    clearInterval(this.#sweepTimer);
    this.#sweepTimer = undefined;
  }

  #tellSoon(): void {
    this.#timer ??= setTimeout(() => this.#tell(), limits.wrongCredentialsTellMs).unref();
  }

  #tell(): void {
    this.#timer = undefined;
    const wrong = [...this.#untold];
    const refused = this.#untoldRight;
    this.#untold = new Map();
    this.#untoldRight = new Set();
    for (let at = 0; at < wrong.length; at += limits.wrongCredentialsPerMessage) {
      this.#publish(wrong.slice(at, at + limits.wrongCredentialsPerMessage), []);
    }
    for (const network of refused) {
      const digests = this.#right.digests(network);
      for (let at = 0; at < digests.length; at += limits.wrongCredentialsPerMessage) {
        this.#publish([], [[network, digests.slice(at, at + limits.wrongCredentialsPerMessage)]]);
      }
    }
  }

  #publish(wrong: Message['wrong'], right: Message['right']): void {
    this.#deps.bus.publish(channel, JSON.stringify({ from: this.#deps.node, wrong, right } satisfies Message));
  }

  #receive(payload: Buffer): void {
    const { from, wrong, right } = readMessage(payload, isMessage);
    if (from === this.#deps.node) return;
    for (const [network, tries] of wrong) this.#count(network, tries);
    for (const [network, digests] of right) this.#right.learn(network, digests);
  }
}

/** Names credentials that hold a password, or several parts, without keeping them. */
export function credentialsName(...parts: (string | Buffer)[]): string {
  const hash = createHash('sha256');
  for (const part of parts) hash.update(`${part.length} `).update(part);
  return hash.digest('base64url');
}
