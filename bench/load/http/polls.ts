/** Many clients that hold long polls, spread over processes and loopback addresses, and their answers. */
import { type ChildProcess, fork } from 'node:child_process';
import { once } from 'node:events';
import { fileURLToPath } from 'node:url';
import type { PollNote, PollOrder } from './poll-process.ts';

const entry = fileURLToPath(new URL('./poll-process.js', import.meta.url));
/** Fewer than the ports that Linux assigns to one address. */
const socketsPerAddress = 8_000;
const filesPerProcess = 9_000;

interface PollAnswer {
  status: number;
  body: string;
  atMs: number;
}

export class HeldPolls {
  readonly #children: ChildProcess[];
  readonly #waiting = new Map<string, (answer: PollAnswer) => void>();
  /** Unexpected answers: polls that expired, sockets that broke. */
  unexpected = 0;
  /** Connects and polls that were refused and tried again, by their reason. */
  readonly refused: Record<string, number> = {};

  private constructor(children: ChildProcess[]) {
    this.#children = children;
    for (const child of children) child.on('message', (note: PollNote) => this.#note(note));
  }

  /** Resolves when every client is connected and has polled. */
  static async open(order: Omit<PollOrder, 'localAddresses'>): Promise<HeldPolls> {
    const processes = Math.ceil(order.tokens.length / filesPerProcess);
    const children = Array.from({ length: processes }, () =>
      fork(entry, { stdio: ['ignore', 'inherit', 'inherit', 'ipc'] }),
    );
    const polls = new HeldPolls(children);
    await Promise.all(
      children.map(async (child, n) => {
        const tokens = order.tokens.filter((_, device) => device % processes === n);
        const addresses = Math.ceil(tokens.length / socketsPerAddress);
        const localAddresses = Array.from({ length: addresses }, (_, i) => `127.0.${n + 1}.${i + 1}`);
        child.send({ ...order, tokens, localAddresses } satisfies PollOrder);
        const failed = once(child, 'exit').then(() => {
          throw new Error('a process of polling clients ended');
        });
        failed.catch(() => {});
        await Promise.race([connectedNote(child), failed]);
      }),
    );
    return polls;
  }

  /** The next answer of this client. */
  next(token: string): Promise<PollAnswer> {
    return new Promise((resolve) => this.#waiting.set(token, resolve));
  }

  close(): void {
    for (const child of this.#children) child.kill('SIGKILL');
  }

  #note(note: PollNote): void {
    if (note.kind === 'refused') this.refused[note.reason] = (this.refused[note.reason] ?? 0) + 1;
    if (note.kind !== 'answered') return;
    const resolve = this.#waiting.get(note.token);
    this.#waiting.delete(note.token);
    if (resolve) resolve(note);
    else this.unexpected += 1;
  }
}

function connectedNote(child: ChildProcess): Promise<void> {
  return new Promise((resolve) => {
    child.on('message', ({ kind }: PollNote) => {
      if (kind === 'connected') resolve();
    });
  });
}
