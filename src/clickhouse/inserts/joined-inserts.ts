/**
 * Joins inserts that arrive at about the same time. An insert costs ClickHouse a part and 10 to 20 ms of CPU however
 * few rows it has, and each worker of a host inserts for itself. An insert of joined rows that fails is repeated for
 * each request alone: each request gets the answer for its own rows. Used by the embedded engine, and by the relay of
 * this host in front of other servers (`relay.ts`).
 */
import { type Clock, systemClock } from '../../base/clock.ts';
import { type Scheduler, systemScheduler } from '../../base/scheduler.ts';

const membersMax = 32;
/** Ends the `log_comment` of an insert that may be joined. ClickHouse itself ignores this word. */
const joinable = ' joinable';
/** Paces whose last start is remembered. */
const pacesMax = 1_000;

/** The rows of one insert or of several. */
export interface Joined<Rows> {
  rows: Rows;
  /** The marks of the clients whose rows these are. */
  marks: readonly string[];
  /**
   * Aborts when the first of these clients leaves. An insert that has not begun must not begin then: the client finds
   * no insert with its mark, and takes its rows for settled.
   */
  anyGone: AbortSignal;
  /** Aborts when no client waits for the insert any more. */
  gone: AbortSignal;
}

interface JoinOptions<Rows> {
  /** Rows of more bytes, alone or together, are worth an insert of their own. */
  bytesMax: number;
  /** Milliseconds in which inserts of the same statement join the first one. */
  windowMs: number;
  /** The least milliseconds between the starts of two inserts of one pace; absent: no pause. */
  everyMs?: () => number;
  clock?: Pick<Clock, 'monotonic'>;
  scheduler?: Scheduler;
  /** Returns the rows of several inserts, in their order; `remove` is called when they are no longer used. */
  join(all: readonly Rows[]): { rows: Rows; remove?(): void };
}

interface Member<Rows, Result> {
  mark: string;
  rows: Rows;
  gone: AbortSignal;
  insert: (joined: Joined<Rows>) => Promise<Result>;
  resolve: (result: Result | Promise<Result>) => void;
}

/** What inserts that may be joined have in common. */
interface Kind {
  /** Equal for inserts that differ in their rows only. */
  same: string;
  /** Equal for inserts that keep one pace. */
  pace: string;
}

interface Group<Rows, Result> {
  members: Member<Rows, Result>[];
  bytes: number;
  pace: string;
  /** The monotonic time at which the timer starts the group. */
  startsAt: number;
  stopTimer: () => void;
}

/** Returns the `log_comment` of an insert that may be joined with others. */
export function joinableComment(mark: string): string {
  return `${mark}${joinable}`;
}

export function readMark(logComment: string): { mark: string; isJoinable: boolean } {
  const isJoinable = logComment.endsWith(joinable);
  const mark = isJoinable ? logComment.slice(0, -joinable.length) : logComment;
  return { mark: mark.replace(/[^\w-]/g, '_'), isJoinable };
}

export class JoinedInserts<Rows extends { readonly bytes: number }, Result> {
  readonly #options: JoinOptions<Rows>;
  readonly #groups = new Map<string, Group<Rows, Result>>();
  /** Pace → the monotonic time of its last start. */
  readonly #starts = new Map<string, number>();

  constructor(options: JoinOptions<Rows>) {
    this.#options = options;
  }

  /** `insert` carries out one insert. */
  insert(
    { same, pace }: Kind,
    { mark, rows, gone }: Pick<Member<Rows, Result>, 'mark' | 'rows' | 'gone'>,
    insert: Member<Rows, Result>['insert'],
  ): Promise<Result> {
    const { bytesMax } = this.#options;
    if (rows.bytes > bytesMax) return insert({ rows, marks: [mark], anyGone: gone, gone });
    return new Promise((resolve) => {
      const member = { mark, rows, gone, insert, resolve };
      let group = this.#groups.get(same);
      if (group && group.bytes + rows.bytes > bytesMax) {
        this.#start(same, group);
        group = undefined;
      }
      group ??= this.#newGroup(same, pace);
      group.members.push(member);
      group.bytes += rows.bytes;
      if (group.members.length >= membersMax) this.#start(same, group);
    });
  }

  #newGroup(same: string, pace: string): Group<Rows, Result> {
    const { scheduler = systemScheduler, clock = systemClock } = this.#options;
    const now = clock.monotonic();
    const startsAt = this.#takeStart(pace, now);
    const stopTimer = scheduler.after(startsAt - now, () => this.#start(same, group));
    const group: Group<Rows, Result> = { members: [], bytes: 0, pace, startsAt, stopTimer };
    this.#groups.set(same, group);
    return group;
  }

  #start(same: string, group: Group<Rows, Result>): void {
    group.stopTimer();
    this.#groups.delete(same);
    this.#giveBackStart(group);
    void this.#run(group.members);
  }

  /** Takes the next start of the pace, and returns its monotonic time. */
  #takeStart(pace: string, now: number): number {
    const { windowMs, everyMs } = this.#options;
    if (!everyMs) return now + windowMs;
    const startsAt = Math.max(now + windowMs, (this.#starts.get(pace) ?? Number.NEGATIVE_INFINITY) + everyMs());
    // Delete first: setting again moves the pace to the end of the order in which paces are forgotten.
    this.#starts.delete(pace);
    this.#starts.set(pace, startsAt);
    if (this.#starts.size > pacesMax) this.#starts.delete(this.#starts.keys().next().value!);
    return startsAt;
  }

  /**
   * Called when a group starts. A full group starts before its time: without this, each full group would move the next
   * start of its pace farther into the future, and few rows after many would wait for minutes.
   */
  #giveBackStart({ pace, startsAt }: Group<Rows, Result>): void {
    const { clock = systemClock } = this.#options;
    const now = clock.monotonic();
    if (startsAt > now && this.#starts.get(pace) === startsAt) this.#starts.set(pace, now);
  }

  async #run(members: readonly Member<Rows, Result>[]): Promise<void> {
    const waiting = members.filter(({ gone }) => !gone.aborted);
    const result = waiting.length > 1 ? await this.#together(waiting) : undefined;
    for (const member of members) {
      const { mark, rows, gone, insert, resolve } = member;
      if (result && waiting.includes(member)) resolve(result);
      else resolve(insert({ rows, marks: [mark], anyGone: gone, gone }));
    }
  }

  /** Returns undefined when the insert of all rows failed. */
  async #together(members: readonly Member<Rows, Result>[]): Promise<Result | undefined> {
    let all: ReturnType<JoinOptions<Rows>['join']> | undefined;
    try {
      all = this.#options.join(members.map(({ rows }) => rows));
      const marks = members.map(({ mark }) => mark);
      const signals = members.map(({ gone }) => gone);
      const anyGone = AbortSignal.any(signals);
      return await members[0]!.insert({ rows: all.rows, marks, anyGone, gone: allGone(signals) });
    } catch {
      return undefined;
    } finally {
      all?.remove?.();
    }
  }
}

function allGone(signals: readonly AbortSignal[]): AbortSignal {
  const controller = new AbortController();
  for (const signal of signals) {
    signal.addEventListener('abort', () => {
      if (signals.every(({ aborted }) => aborted)) controller.abort();
    });
  }
  return controller.signal;
}
