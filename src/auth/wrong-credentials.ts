/**
 * Counts wrong credentials of devices by network, over HTTP and MQTT together (`wrong-tries.ts`). A network that sent
 * too many is refused for a minute, before anything is looked up. Credentials that were right from this network are
 * still served: of a thousand devices of one NAT, one with a wrong token does not stop the other devices. An attacker
 * at the same address can use only those credentials.
 *
 * The counts hold for all workers and hosts on the bus. Right credentials are known to the worker that received them,
 * and to all workers and hosts when the network is refused.
 */
import { createHash } from 'node:crypto';
import type { Clock } from '../base/clock.ts';
import { limits } from '../base/limits.ts';
import type { Counter, Metrics } from '../base/metrics/metrics.ts';
import { networkOf } from '../base/network.ts';
import type { Bus } from '../bus/bus.ts';
import type { HomeExchange } from '../bus/home-exchange.ts';
import { JsonChannel } from '../bus/json-channel.ts';
import { isListOf, isText } from '../bus/messages.ts';
import { RightCredentials } from './right-credentials.ts';
import { WrongTries } from './wrong-tries.ts';

/** Digests of what was right from a network that is refused now. */
interface RightDigests {
  network: string;
  digests: string[];
}

function isRightDigests(value: object): value is RightDigests {
  return 'network' in value && isText(value.network) && 'digests' in value && isListOf(value.digests, isText);
}

interface WrongCredentialsDeps {
  bus: Bus;
  /** Counts with all workers. */
  exchange: HomeExchange;
  /** Wrong credentials of one address within a minute. */
  wrongMax: number;
  isTrustedProxy: (address: string) => boolean;
  clock: Clock;
  metrics: Metrics;
}

export class WrongCredentials {
  readonly #channel: JsonChannel<RightDigests>;
  readonly #tries: WrongTries;
  readonly #right = new RightCredentials();
  readonly #refused: Counter;

  constructor({ bus, exchange, wrongMax, isTrustedProxy, clock, metrics }: WrongCredentialsDeps) {
    this.#channel = new JsonChannel({
      bus,
      channel: 'right-credentials',
      isContent: isRightDigests,
      onMessage: ({ network, digests }) => this.#right.learn(network, digests),
    });
    this.#tries = new WrongTries({
      exchange,
      topic: 'wrong-device-credentials',
      wrongMax,
      reason: 'wrong_credentials',
      message:
        'Too many wrong credentials from this address: check the token of each device behind it, and try again later.',
      isTrustedProxy,
      clock,
      onRefused: (network) => this.#publishRight(network),
    });
    this.#refused = metrics.counter(
      'wrong_credentials_refused_total',
      'Requests and sign-ins refused because their address gave too many wrong credentials.',
    );
    metrics.observed(
      'wrong_credentials_addresses',
      'Addresses that gave wrong credentials within the last minute or are refused.',
      () => this.#tries.networks,
      'max',
    );
  }

  async start(): Promise<void> {
    await this.#channel.start();
  }

  stop(): void {
    this.#channel.stop();
    this.#tries.stop();
  }

  /** No address gave wrong credentials lately: nothing is refused, and nothing needs to be noted of known devices. */
  get isCalm(): boolean {
    return this.#tries.networks === 0;
  }

  /** True when the network of the address is refused, unless these credentials were right from this network before. */
  refuses(address: string, credentials: string): boolean {
    const network = networkOf(address);
    return this.#tries.isRefused(network) && !this.#right.has(network, credentials);
  }

  /** Throws when the network refuses these credentials. */
  check(address: string, credentials: string): void {
    if (!this.refuses(address, credentials)) return;
    this.#refused.add(1);
    throw this.#tries.refusal(networkOf(address));
  }

  /** Checks known credentials while the worker is not calm: false = refused. Notes right ones for a later refusal. */
  mayUse(address: string, credentials: string): boolean {
    const network = networkOf(address);
    if (this.#tries.isRefused(network)) return this.#right.has(network, credentials);
    this.#right.add(network, credentials);
    return true;
  }

  right(address: string, credentials: string): void {
    if (address !== '') this.#right.add(networkOf(address), credentials);
  }

  /** Called in the same turn as the check after the lookup. */
  wrong(address: string): void {
    this.#tries.wrong(address);
  }

  #publishRight(network: string): void {
    const digests = this.#right.digests(network);
    for (let at = 0; at < digests.length; at += limits.wrongTriesPerMessage) {
      this.#channel.publish({ network, digests: digests.slice(at, at + limits.wrongTriesPerMessage) });
    }
  }
}

/** Names credentials that hold a password, or several parts, without keeping them. */
export function credentialsName(...parts: (string | Buffer)[]): string {
  const hash = createHash('sha256');
  for (const part of parts) hash.update(`${part.length} `).update(part);
  return hash.digest('base64url');
}
