/**
 * Counts that all workers and hosts share. A process adds what it counted; `Tallies` publishes the sums and hands over
 * what every other process counted. A message that the bus loses leaves the other processes with counts that are too low.
 */
import { randomUUID } from 'node:crypto';
import type { Bus } from './bus.ts';
import { isListOf, isObject, isText, isWhole, readMessage } from './messages.ts';

/** Whose counts they are: devices go by number, all others by id or name. */
export type Owner = number | string;

export interface TalliesDeps<Group extends string> {
  bus: Bus;
  channel: string;
  /** Kinds of owners. */
  groups: readonly Group[];
  /** Numbers that are counted for each owner. */
  countsOfOwner: number;
  /** Between two messages of this process; the first one after a quiet time is sent at once. */
  intervalMs: number;
  ownersPerMessage: number;
  /** Receives what another process counted since its last message. */
  onCounts: (group: Group, owner: Owner, counts: readonly number[]) => void;
}

type Tally<Group> = [group: Group, owner: Owner, counts: number[]];

interface Message<Group> {
  /** The process that counted. */
  from: string;
  taken: Tally<Group>[];
}

export class Tallies<Group extends string> {
  readonly #deps: TalliesDeps<Group>;
  readonly #process = randomUUID();
  /** Sums since the last message. */
  readonly #sums: Map<Group, Map<Owner, number[]>>;
  #timer: NodeJS.Timeout | undefined;
  #unsubscribe: (() => void) | undefined;

  constructor(deps: TalliesDeps<Group>) {
    this.#deps = deps;
    this.#sums = new Map(deps.groups.map((group) => [group, new Map()]));
  }

  async start(): Promise<void> {
    const { bus, channel } = this.#deps;
    this.#unsubscribe = await bus.subscribe(channel, (payload) => this.#receive(payload));
  }

  stop(): void {
    this.#unsubscribe?.();
    clearTimeout(this.#timer);
  }

  /** Adds to the next message; `counts` is copied. */
  add(group: Group, owner: Owner, counts: readonly number[]): void {
    const owners = this.#sums.get(group)!;
    const sum = owners.get(owner);
    if (!sum) owners.set(owner, [...counts]);
    else for (let i = 0; i < sum.length; i += 1) sum[i]! += counts[i]!;
  }

  /** Publishes what was added: at once after a quiet time, gathered under load. */
  publish(): void {
    if (!this.#timer) this.#send();
  }

  #send(): void {
    this.#timer = undefined;
    const { bus, channel, intervalMs, ownersPerMessage } = this.#deps;
    const taken: Tally<Group>[] = [];
    for (const [group, owners] of this.#sums) {
      for (const [owner, counts] of owners) taken.push([group, owner, counts]);
      owners.clear();
    }
    if (taken.length === 0) return;
    for (let at = 0; at < taken.length; at += ownersPerMessage) {
      const message: Message<Group> = { from: this.#process, taken: taken.slice(at, at + ownersPerMessage) };
      bus.publish(channel, JSON.stringify(message));
    }
    this.#timer = setTimeout(() => this.#send(), intervalMs).unref();
  }

  #receive(payload: Buffer): void {
    const { from, taken } = readMessage(payload, this.#isMessage);
    if (from === this.#process) return;
    for (const [group, owner, counts] of taken) this.#deps.onCounts(group, owner, counts);
  }

  readonly #isMessage = (value: unknown): value is Message<Group> =>
    isObject(value) && isText(value['from']) && isListOf(value['taken'], this.#isTally);

  readonly #isTally = (value: unknown): value is Tally<Group> => {
    if (!Array.isArray(value) || value.length !== 3) return false;
    const [group, owner, counts] = value as unknown[];
    const isGroup = this.#deps.groups.some((known) => known === group);
    if (!isGroup || !(isText(owner) || isWhole(owner))) return false;
    return isListOf(counts, isWhole) && counts.length === this.#deps.countsOfOwner;
  };
}
