/**
 * Counts that all workers and hosts share. One worker, the home, receives what every worker counted, and announces the
 * sums to all workers. So a worker receives a few messages a second, whatever the number of workers. A worker without
 * counts sends nothing. A worker sends its next report when the home has confirmed the one before, and never waits: the
 * topics decide what a worker may do meanwhile. There may be two homes for a while. Both receive all reports, and a
 * worker follows one of them. Messages have durations and no times of a clock.
 */
import { type Clock, systemClock } from '../base/clock.ts';
import { limits } from '../base/limits.ts';
import { type Scheduler, systemScheduler } from '../base/scheduler.ts';
import { isObject } from '../base/schema.ts';
import type { Bus } from './bus.ts';
import { HomePace } from './home-pace.ts';
import { JsonChannel } from './json-channel.ts';
import { isCount, isListOf, isName } from './messages.ts';

/** The workers that count together, as this worker knows. */
interface Fleet {
  /** The workers of all hosts. */
  workers: () => number;
  /** True while this worker is the home. */
  isHome: () => boolean;
}

/** One element of a report or of an announcement. */
export type HomeEntry = readonly unknown[];

/** What is counted: each topic has entries of its own form. */
export interface HomeTopic {
  isReport: (entry: HomeEntry) => boolean;
  isSum: (entry: HomeEntry) => boolean;
  /** Returns what this worker counted since the last call. */
  collect: () => HomeEntry[];
  /** What was collected is in the sums that were learnt. */
  confirmed: () => void;
  /** What was collected may not be in any sum. `isFirst`: the home was not silent before. */
  lost: (isFirst: boolean) => void;
  /** At the home: takes an entry of a worker. */
  count: (entry: HomeEntry, worker: string) => void;
  /** At the home: returns some of the sums that have changed since they were last returned, up to the given number. */
  sums: (countMax: number) => HomeEntry[];
  /** At each worker: takes a sum. `isConfirming`: what was collected is in the sum. */
  learn: (sum: HomeEntry, isConfirming: boolean) => void;
}

type EntriesOfTopics = Record<string, HomeEntry[]>;

interface Report {
  number: number;
  topics: EntriesOfTopics;
}

/** A worker, and the number of its last report. */
type Confirmation = [worker: string, number: number];

interface Announcement {
  /** The reports that are in the sums. */
  confirmed: Confirmation[];
  topics: EntriesOfTopics;
}

interface HomeExchangeDeps {
  bus: Bus;
  fleet: Fleet;
  clock?: Clock;
  scheduler?: Scheduler;
}

export class HomeExchange {
  readonly #deps: HomeExchangeDeps;
  readonly #clock: Clock;
  readonly #scheduler: Scheduler;
  readonly #topics = new Map<string, HomeTopic>();
  readonly #reports: JsonChannel<Report>;
  readonly #announcements: JsonChannel<Announcement>;
  readonly #reporting: HomePace;
  readonly #announcing: HomePace;
  /** The number of the report that is not confirmed. */
  #sent: number | undefined;
  #number = 0;
  /** Stops the timer after which the report that is not confirmed counts as lost. */
  #stopSilence = () => {};
  #isSilent = false;
  /** The home that this worker follows, and the monotonic time of its last announcement. */
  #home = '';
  #heardAt = Number.NEGATIVE_INFINITY;
  /** At the home: workers whose reports the next announcement confirms. */
  #unconfirmed = new Map<string, number>();
  #isListening = false;
  /** True while the bus has not confirmed the subscription to reports: a second one would count each report twice. */
  #isSubscribing = false;
  #isStopped = false;
  #endChecks = () => {};

  constructor(deps: HomeExchangeDeps) {
    const { bus, clock = systemClock, scheduler = systemScheduler } = deps;
    this.#deps = deps;
    this.#clock = clock;
    this.#scheduler = scheduler;
    this.#reports = new JsonChannel({
      bus,
      channel: 'home-reports',
      isContent: (value: object): value is Report =>
        'number' in value && isCount(value.number) && 'topics' in value && this.#areEntries(value.topics, 'isReport'),
      onMessage: (report, from) => this.#count(report, from),
    });
    this.#announcements = new JsonChannel({
      bus,
      channel: 'home-sums',
      isContent: (value: object): value is Announcement =>
        'confirmed' in value &&
        isListOf(value.confirmed, isConfirmation) &&
        'topics' in value &&
        this.#areEntries(value.topics, 'isSum'),
      onMessage: (announcement, from) => this.#learn(announcement, from),
    });
    const pace = { clock, scheduler };
    this.#reporting = new HomePace({ ...pace, intervalMs: () => this.intervalMs, send: () => this.#report() });
    // Workers wait for the confirmation of their reports, so many workers make announcements no rarer.
    const intervalMs = () => Math.min(limits.homeMs, this.intervalMs);
    this.#announcing = new HomePace({ ...pace, intervalMs, send: () => this.#announce() });
  }

  /** The name of this worker in the messages. */
  get worker(): string {
    return this.#reports.process;
  }

  /** The workers of all hosts. */
  get workers(): number {
    return this.#deps.fleet.workers();
  }

  /** True while the counts of this worker are all that it can know: it has no company, or no bus. */
  get isAlone(): boolean {
    return this.#deps.fleet.workers() === 1 || !this.#deps.bus.connected;
  }

  /** True after a report that the home did not confirm in time, until it confirms one. */
  get isSilent(): boolean {
    return this.#isSilent;
  }

  /** Shortest mean time between two reports of a worker. */
  get intervalMs(): number {
    const { workers } = this;
    const many = Math.max(limits.homeMs, limits.homeMsPerWorker * workers);
    return Math.min(limits.homeMsPerSquaredWorker * workers * workers, many);
  }

  add(name: string, topic: HomeTopic): void {
    this.#topics.set(name, topic);
  }

  async start(): Promise<void> {
    this.#endChecks = this.#scheduler.every(limits.homeCheckMs, () => void this.#listen());
    await Promise.all([this.#announcements.start(), this.#listen()]);
  }

  stop(): void {
    this.#isStopped = true;
    this.#endChecks();
    this.#stopSilence();
    this.#reporting.stop();
    this.#announcing.stop();
    this.#reports.stop();
    this.#announcements.stop();
  }

  /** Sends what the topics have counted: at once after a quiet time, gathered under load. */
  wake(): void {
    if (this.#sent === undefined) this.#reporting.wake();
  }

  /** Receives reports while this worker is the home. */
  async #listen(): Promise<void> {
    const isHome = this.#deps.fleet.isHome();
    if (isHome === this.#isListening || this.#isSubscribing) return;
    this.#isListening = isHome;
    if (!isHome) {
      this.#reports.stop();
      return;
    }
    this.#isSubscribing = true;
    await this.#reports.start();
    this.#isSubscribing = false;
    if (this.#isStopped) this.#reports.stop();
  }

  #report(): boolean {
    if (this.#sent !== undefined) return false;
    const topics = entriesOf(this.#topics, (topic) => topic.collect());
    if (Object.keys(topics).length === 0) return false;
    this.#number += 1;
    this.#sent = this.#number;
    const report = { number: this.#number, topics };
    this.#stopSilence = this.#scheduler.after(limits.homeSilentMs, () => this.#lost());
    if (this.#isListening) this.#count(report, this.worker);
    // A home that follows another one counts there, too.
    if (!this.#isListening || this.#home !== this.worker) this.#reports.publish(report);
    return true;
  }

  #lost(): void {
    const isFirst = !this.#isSilent;
    this.#sent = undefined;
    this.#isSilent = true;
    for (const topic of this.#topics.values()) topic.lost(isFirst);
    this.#reporting.wake();
  }

  #count({ number, topics }: Report, worker: string): void {
    for (const [name, entries] of Object.entries(topics)) {
      const topic = this.#topics.get(name);
      if (topic) for (const entry of entries) topic.count(entry, worker);
    }
    if (this.#unconfirmed.size < limits.gatherWorkersMax) this.#unconfirmed.set(worker, number);
    this.#announcing.wake();
  }

  #announce(): boolean {
    const confirmed = [...this.#unconfirmed];
    this.#unconfirmed.clear();
    const topics = entriesOf(this.#topics, (topic) => topic.sums(limits.homeSumsMax));
    const announcement = { confirmed, topics };
    this.#announcements.publish(announcement);
    this.#learn(announcement, this.worker);
    const isMore = Object.values(topics).some((entries) => entries.length >= limits.homeSumsMax);
    if (isMore) this.#announcing.wake();
    return true;
  }

  #learn({ confirmed, topics }: Announcement, home: string): void {
    const now = this.#clock.monotonic();
    if (home !== this.#home && now - this.#heardAt < limits.homeSilentMs) return;
    this.#home = home;
    this.#heardAt = now;
    const isOwn = ([worker, number]: Confirmation) => worker === this.worker && number === this.#sent;
    const isConfirming = confirmed.some(isOwn);
    for (const [name, sums] of Object.entries(topics)) {
      const topic = this.#topics.get(name);
      if (topic) for (const sum of sums) topic.learn(sum, isConfirming);
    }
    if (!isConfirming) return;
    this.#stopSilence();
    this.#sent = undefined;
    this.#isSilent = false;
    for (const topic of this.#topics.values()) topic.confirmed();
    this.#reporting.wake();
  }

  /** Ignores topics that this version does not know. */
  #areEntries(value: unknown, form: 'isReport' | 'isSum'): value is EntriesOfTopics {
    if (!isObject(value)) return false;
    return Object.entries(value).every(([name, entries]) => {
      const topic = this.#topics.get(name);
      const isEntry = (entry: unknown): entry is HomeEntry => Array.isArray(entry) && (!topic || topic[form](entry));
      return isListOf(entries, isEntry);
    });
  }
}

function isConfirmation(value: unknown): value is Confirmation {
  return Array.isArray(value) && value.length === 2 && isName(value[0]) && isCount(value[1]);
}

/** Returns the entries of the topics that have any. */
function entriesOf(
  topics: ReadonlyMap<string, HomeTopic>,
  entriesOfTopic: (topic: HomeTopic) => HomeEntry[],
): EntriesOfTopics {
  const all = [...topics].map(([name, topic]) => [name, entriesOfTopic(topic)] as const);
  return Object.fromEntries(all.filter(([, entries]) => entries.length > 0));
}
