/**
 * Checks the API keys of requests. A worker caches the store's answer about a key for less than a second. So a new key
 * works, and a revoked key is refused, within a second on every worker and host. With the bus a change takes effect at
 * once.
 */
import type { Clock } from '../base/clock.ts';
import { messageOf } from '../base/errors.ts';
import { FifoMap } from '../base/fifo-map.ts';
import { GatheredStatements } from '../base/gathered-statements.ts';
import { limits } from '../base/limits.ts';
import type { Log } from '../base/log.ts';
import { type Scheduler, systemScheduler } from '../base/scheduler.ts';
import type { Bus } from '../bus/bus.ts';
import { UnreadMessage } from '../bus/messages.ts';
import type { Queries } from '../postgres/client.ts';
import { isAway } from '../postgres/postgres-error.ts';
import { sha256, valueCharsMax } from './api-key.ts';
import { findKeyOwners, type KeyOwner, purgeApiKeys } from './api-key-store.ts';

const channel = 'api-keys';
/** A SHA-256 as base64url. */
const nameChars = 43;

interface ApiKeysDeps {
  postgres: Queries;
  bus: Bus;
  clock: Clock;
  scheduler?: Scheduler;
  log: Log;
  /**
   * Returns the time by which expired keys are deleted; undefined while no key may be deleted. One worker has this
   * function, and deletes the keys once a day for all workers.
   */
  purgeTime?: () => Promise<number | undefined>;
}

interface Known {
  /** Monotonic milliseconds at which the read of the store began. */
  askedAt: number;
  /** Undefined: the key does not exist. Requests that arrive during the read share its answer. */
  owner: Promise<KeyOwner | undefined>;
}

export class ApiKeys {
  readonly #deps: ApiKeysDeps;
  readonly #owners: GatheredStatements<Buffer, KeyOwner>;
  readonly #known = new FifoMap<string, Known>(limits.apiKeyCacheMax);
  #leave: (() => void) | undefined;
  #endPurges = () => {};

  constructor(deps: ApiKeysDeps) {
    this.#deps = deps;
    this.#owners = new GatheredStatements((hashes) => findKeyOwners(deps.postgres, hashes));
  }

  async start(): Promise<void> {
    this.#leave = await this.#deps.bus.subscribe(channel, (payload) => this.#receive(payload));
    const { purgeTime, scheduler = systemScheduler } = this.#deps;
    if (!purgeTime) return;
    await this.#purge();
    this.#endPurges = scheduler.every(limits.apiKeyPurgeMs, () => void this.#purge());
  }

  stop(): void {
    this.#leave?.();
    this.#endPurges();
  }

  /** Returns undefined when the key does not exist. `network`: of the address of the caller, whose turn it uses. */
  async find(value: string, network: string): Promise<KeyOwner | undefined> {
    if (value === '' || value.length > valueCharsMax) return undefined;
    const hash = sha256(value);
    const name = hash.toString('base64url');
    const now = this.#deps.clock.monotonic();
    const known = this.#known.get(name);
    if (known && now - known.askedAt < limits.apiKeyBelievedMs) return await known.owner;
    const asked: Known = { askedAt: now, owner: this.#owners.ask(name, hash, network) };
    this.#known.set(name, asked);
    try {
      return await asked.owner;
    } catch (error) {
      // The next request reads the store again.
      if (this.#known.get(name) === asked) this.#known.delete(name);
      throw error;
    }
  }

  /** Called after the commit of a change. */
  changed(valueSha256: Buffer): void {
    const name = valueSha256.toString('base64url');
    this.#known.delete(name);
    this.#deps.bus.publish(channel, name);
  }

  /** A message about a key that is not cached changes nothing. */
  #receive(payload: Buffer): void {
    if (payload.length !== nameChars) throw new UnreadMessage('another shape');
    this.#known.delete(payload.toString('latin1'));
  }

  async #purge(): Promise<void> {
    const { postgres, purgeTime, log } = this.#deps;
    try {
      const time = await purgeTime?.();
      if (time !== undefined) await purgeApiKeys(postgres, time);
    } catch (error) {
      if (!isAway(error)) log.warn('api_keys_purge_failed', { reason: messageOf(error) });
    }
  }
}
