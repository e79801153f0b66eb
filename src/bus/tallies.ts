/**
 * Counts that all workers and hosts share. A process adds its own counts; `Tallies` publishes the sums and passes on
 * the counts of other processes. After a lost message the other processes have counts that are too low.
 */
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
  /** Time between two messages of this process; the first one after a quiet time is sent at once. */
  intervalMs: number;
  ownersPerMessage: number;
  /** Receives what another process counted since its last message. */
  onCounts: (group: Group, owner: TallyOwner, counts: readonly number[]) => void;
}

type Entry<Group> = [group: Group, owner: TallyOwner, counts: number[]];

interface Counted<Group> {
  taken: Entry<Group>[];
}

/** The counts of this process for the owners of one group since its last message. */
class Tally {
  #sums = new Map<TallyOwner, number[]>();

  /** Adds to the next message; `counts` is copied. */
  add(owner: TallyOwner, counts: readonly number[]): void {
    const sum = this.#sums.get(owner);
    if (!sum) this.#sums.set(owner, [...counts]);
    else for (let i = 0; i < sum.length; i += 1) sum[i]! += counts[i]!;
  }

  /** Gives the sums out and begins again. */
  take(): ReadonlyMap<TallyOwner, number[]> {
    const sums = this.#sums;
    if (sums.size > 0) this.#sums = new Map();
    return sums;
  }
}

export class Tallies<Group extends string> {
  readonly #deps: TalliesDeps<Group>;
  readonly #channel: JsonChannel<Counted<Group>>;
  readonly #tallies: Map<Group, Tally>;
  #timer: NodeJS.Timeout | undefined;

  constructor(deps: TalliesDeps<Group>) {
    this.#deps = deps;
    const { bus, channel } = deps;
    const isContent = (value: object) => this.#isCounted(value);
    this.#channel = new JsonChannel({ bus, channel, isContent, onMessage: (counted) => this.#receive(counted) });
    this.#tallies = new Map(deps.groups.map((group) => [group, new Tally()]));
  }

  async start(): Promise<void> {
    await this.#channel.start();
  }

  stop(): void {
    this.#channel.stop();
    clearTimeout(this.#timer);
  }

  /** Valid as long as these tallies. */
  of(group: Group): Tally {
    return this.#tallies.get(group)!;
  }

  /** Publishes the added counts: at once after a quiet time, gathered under load. */
  publish(): void {
    if (!this.#timer) this.#send();
  }

  #send(): void {
    this.#timer = undefined;
    const { intervalMs, ownersPerMessage } = this.#deps;
    const taken: Entry<Group>[] = [];
    for (const [group, tally] of this.#tallies) {
      for (const [owner, counts] of tally.take()) taken.push([group, owner, counts]);
    }
    if (taken.length === 0) return;
    for (let at = 0; at < taken.length; at += ownersPerMessage) {
      this.#channel.publish({ taken: taken.slice(at, at + ownersPerMessage) });
    }
    this.#timer = setTimeout(() => this.#send(), intervalMs).unref();
  }

  #receive({ taken }: Counted<Group>): void {
    for (const [group, owner, counts] of taken) this.#deps.onCounts(group, owner, counts);
  }

  #isCounted(value: object): value is Counted<Group> {
    return 'taken' in value && isListOf(value.taken, this.#isEntry);
  }

  readonly #isEntry = (value: unknown): value is Entry<Group> => {
    if (!Array.isArray(value) || value.length !== 3) return false;
    const [group, owner, counts] = value as unknown[];
    const isGroup = this.#deps.groups.some((known) => known === group);
    if (!isGroup || !(isName(owner) || isWhole(owner))) return false;
    return isListOf(counts, isCount) && counts.length === this.#deps.countsOfOwner;
  };
}
