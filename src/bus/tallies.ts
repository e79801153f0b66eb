/**
 * Counts that all workers and hosts share. A process adds its own counts; `Tallies` publishes the sums and passes on
 * the counts of other processes. After a lost message the other processes have counts that are too low. The more
 * workers there are, the more seldom each one publishes: the messages that reach a worker do not grow with their
 * number.
 */
import { limits } from '../base/limits.ts';
import type { Bus } from './bus.ts';
import { JsonChannel } from './json-channel.ts';
import { isCount, isListOf, isName, isWhole } from './messages.ts';

/** The owner of counts: a device by its number, any other owner by its id or name. */
export type TallyOwner = number | string;

interface TalliesDeps<Group extends string> {
  bus: Bus;
  channel: string;
  /** Kinds of owners. */
  groups: readonly Group[];
  /** Numbers that are counted for each owner. */
  countsOfOwner: number;
  /** The workers of all hosts; absent: one. */
  fleetWorkers?: (() => number) | undefined;
  ownersPerMessage: number;
  /** Receives what another process counted since its last message. */
  onCounts: (group: Group, owner: TallyOwner, counts: readonly number[], part: string) => void;
}

/** `part` is left out where it is ''. */
type Entry = [group: string, owner: TallyOwner, counts: number[], part?: string];

interface Counted {
  taken: Entry[];
}

/** The counts of this process for the owners of one part of a group since its last message. */
export class Tally {
  readonly group: string;
  readonly part: string;
  /** The tallies with counts for the next message. */
  readonly #waiting: Set<Tally>;
  #sums = new Map<TallyOwner, number[]>();

  constructor(group: string, part: string, waiting: Set<Tally>) {
    this.group = group;
    this.part = part;
    this.#waiting = waiting;
  }

  /** Adds to the next message; `counts` is copied. */
  add(owner: TallyOwner, counts: readonly number[]): void {
    if (this.#sums.size === 0) this.#waiting.add(this);
    const sum = this.#sums.get(owner);
    if (!sum) this.#sums.set(owner, [...counts]);
    else for (let i = 0; i < sum.length; i += 1) sum[i]! += counts[i]!;
  }

  /** Returns the sums and begins again. */
  take(): Entry[] {
    const sums = this.#sums;
    this.#sums = new Map();
    return [...sums].map(([owner, counts]) =>
      this.part === '' ? [this.group, owner, counts] : [this.group, owner, counts, this.part],
    );
  }
}

export class Tallies<Group extends string> {
  readonly #deps: TalliesDeps<Group>;
  readonly #channel: JsonChannel<Counted>;
  readonly #waiting = new Set<Tally>();
  #timer: NodeJS.Timeout | undefined;

  constructor(deps: TalliesDeps<Group>) {
    this.#deps = deps;
    const { bus, channel } = deps;
    const isContent = (value: object): value is Counted => this.#isCounted(value);
    this.#channel = new JsonChannel({ bus, channel, isContent, onMessage: (counted) => this.#receive(counted) });
  }

  async start(): Promise<void> {
    await this.#channel.start();
  }

  stop(): void {
    this.#channel.stop();
    clearTimeout(this.#timer);
  }

  /**
   * Makes a tally of a group, or of one part of the group: the owners of a part have their own counts. The caller keeps
   * the tally.
   */
  tally(group: Group, part = ''): Tally {
    return new Tally(group, part, this.#waiting);
  }

  /** Publishes the added counts: at once after a quiet time, gathered under load. */
  publish(): void {
    if (!this.#timer) this.#send();
  }

  #send(): void {
    this.#timer = undefined;
    const { fleetWorkers = () => 1, ownersPerMessage } = this.#deps;
    const taken = [...this.#waiting].flatMap((tally) => tally.take());
    this.#waiting.clear();
    if (taken.length === 0) return;
    for (let at = 0; at < taken.length; at += ownersPerMessage) {
      this.#channel.publish({ taken: taken.slice(at, at + ownersPerMessage) });
    }
    this.#timer = setTimeout(() => this.#send(), fleetWorkers() * limits.tallyMsPerWorker).unref();
  }

  /** Ignores the counts of a group that this version does not know. */
  #receive({ taken }: Counted): void {
    const { groups, onCounts } = this.#deps;
    for (const [name, owner, counts, part = ''] of taken) {
      const group = groups.find((known) => known === name);
      if (group !== undefined) onCounts(group, owner, counts, part);
    }
  }

  #isCounted(value: object): value is Counted {
    return 'taken' in value && isListOf(value.taken, this.#isEntry);
  }

  readonly #isEntry = (value: unknown): value is Entry => {
    if (!Array.isArray(value)) return false;
    const [group, owner, counts, part = ''] = value as unknown[];
    if (!(isName(group) && isName(part) && (isName(owner) || isWhole(owner)))) return false;
    return isListOf(counts, isCount) && counts.length === this.#deps.countsOfOwner;
  };
}
