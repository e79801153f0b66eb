/**
 * Joins small inserts that arrive at about the same time. An insert costs the engine 10 to 20 ms of CPU however few
 * rows it has, and the workers of a host begin their inserts together while senders wait for them (`ship/lane.ts`). An
 * insert of joined rows that fails is repeated for each request alone: each request gets the answer for its own rows.
 * The summary of an answer counts all joined rows.
 */
import { readFileSync } from 'node:fs';
import type { BodyFile, BodyFiles } from './body.ts';
import type { Result } from './engine.ts';

/** Milliseconds in which inserts of the same statement join the first one. */
const windowMs = 5;
/** Rows of more bytes are worth an insert of their own. */
const bytesMax = 256 * 1024;
const membersMax = 32;
/** Ends the `log_comment` of an insert that may be joined. ClickHouse itself ignores this word. */
const joinable = ' joinable';

interface JoinedRows {
  path: string;
  /** The marks of the clients whose rows the file has. */
  marks: readonly string[];
  /**
   * Aborts when the first of these clients leaves. An insert that has not begun must not begin then: the client finds
   * no insert with its mark, and takes its rows for settled.
   */
  anyGone: AbortSignal;
  /** Aborts when no client waits for the insert any more. */
  gone: AbortSignal;
}

type Insert = (rows: JoinedRows) => Promise<Result>;

interface Member {
  mark: string;
  file: BodyFile;
  gone: AbortSignal;
  resolve: (result: Result | Promise<Result>) => void;
  reject: (error: unknown) => void;
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

export class JoinedInserts {
  readonly #files: BodyFiles;
  readonly #groups = new Map<string, Member[]>();

  constructor(files: BodyFiles) {
    this.#files = files;
  }

  /** `statement`: equal for inserts that differ in their rows only. */
  insert(
    statement: string,
    { mark, file, gone }: Pick<Member, 'mark' | 'file' | 'gone'>,
    insert: Insert,
  ): Promise<Result> {
    if (file.bytes > bytesMax) return insert({ path: file.path, marks: [mark], anyGone: gone, gone });
    return new Promise((resolve, reject) => {
      const member = { mark, file, gone, resolve, reject };
      const group = this.#groups.get(statement);
      if (group) {
        group.push(member);
        if (group.length >= membersMax) this.#groups.delete(statement);
        return;
      }
      const members = [member];
      this.#groups.set(statement, members);
      setTimeout(() => {
        if (this.#groups.get(statement) === members) this.#groups.delete(statement);
        void this.#run(members, insert);
      }, windowMs);
    });
  }

  async #run(members: readonly Member[], insert: Insert): Promise<void> {
    const alone = ({ file, mark, gone, resolve }: Member) =>
      resolve(insert({ path: file.path, marks: [mark], anyGone: gone, gone }));
    const waiting = members.filter(({ gone }) => !gone.aborted);
    const result = waiting.length > 1 ? await this.#together(waiting, insert) : undefined;
    for (const member of members) {
      if (result && waiting.includes(member)) member.resolve(result);
      else alone(member);
    }
  }

  /** Returns undefined when the insert of all rows failed. */
  async #together(members: readonly Member[], insert: Insert): Promise<Result | undefined> {
    let all: BodyFile | undefined;
    try {
      all = this.#files.create();
      for (const { file } of members) all.append(readFileSync(file.path));
      all.end();
      const marks = members.map(({ mark }) => mark);
      const signals = members.map(({ gone }) => gone);
      const anyGone = AbortSignal.any(signals);
      return await insert({ path: all.path, marks, anyGone, gone: allGone(signals) });
    } catch {
      return undefined;
    } finally {
      all?.remove();
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
