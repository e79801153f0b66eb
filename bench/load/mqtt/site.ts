/** The gateway of a large site as the benchmark uses it: a process that receives tasks. */
import { type ChildProcess, fork } from 'node:child_process';
import { fileURLToPath } from 'node:url';
import type { SiteNote, SiteOrder, SiteSent, SiteTask } from './site-process.ts';

const entry = fileURLToPath(new URL('./site-process.js', import.meta.url));

const connackMs = 20_000;

interface SiteConnected {
  seconds: number;
  refused: Record<string, number>;
}

export class SiteGateway {
  readonly #child: ChildProcess;
  /** Devices of which a pushed attribute came in, in order. */
  readonly pushed: string[] = [];
  #answer: (note: SiteNote) => void = () => {};
  #ended: (error: Error) => void = () => {};

  constructor() {
    this.#child = fork(entry, { stdio: ['ignore', 'inherit', 'inherit', 'ipc'] });
    this.#child.on('message', (note: SiteNote) => {
      if (note.kind === 'attributes') this.pushed.push(note.device);
      else if (note.kind === 'failed') this.#ended(new Error(`the gateway of the large site: ${note.sentence}`));
      else this.#answer(note);
    });
    this.#child.on('exit', (code) => this.#ended(new Error(`the gateway's process ended with ${code}`)));
  }

  connect(order: Omit<SiteOrder, 'connackMs'>): Promise<SiteConnected> {
    return this.#ask<SiteConnected>({ kind: 'connect', order: { ...order, connackMs } });
  }

  reconnect(): Promise<SiteConnected> {
    return this.#ask<SiteConnected>({ kind: 'reconnect' });
  }

  async send(seconds: number): Promise<SiteSent> {
    return (await this.#ask<{ sent: SiteSent }>({ kind: 'send', seconds })).sent;
  }

  close(): void {
    this.#child.kill('SIGKILL');
  }

  #ask<T>(task: SiteTask): Promise<T> {
    return new Promise((resolve, reject) => {
      this.#answer = (note) => resolve(note as T);
      this.#ended = reject;
      this.#child.send(task);
    });
  }
}
