/**
 * The data directory: opened by one instance only, cleared of processes that a killed run left behind, and home of the
 * generated secrets.
 */
import { randomBytes } from 'node:crypto';
import { chmodSync, mkdirSync, readdirSync, readFileSync, renameSync, writeFileSync } from 'node:fs';
import { join, resolve } from 'node:path';
import { messageOf, StartError } from './base/errors.ts';
import type { Log } from './base/log.ts';
import { endProcess, liveProcess, removeProcessFile, writeProcessFile } from './base/process-file.ts';
import { journalDirectory, runDirectory } from './instance.ts';

export interface Secrets {
  clickhousePassword: string;
  postgresPassword: string;
  adminPassword: string;
}

const leftoverWaitMsMax = 3000;

export class DataDirectory {
  readonly path: string;
  readonly runPath: string;
  readonly journalPath: string;

  constructor(dir: string) {
    this.path = resolve(dir);
    this.runPath = join(this.path, runDirectory);
    this.journalPath = join(this.path, journalDirectory);
    try {
      mkdirSync(this.runPath, { recursive: true });
      mkdirSync(this.journalPath, { recursive: true });
      // Others may pass through, not look: as root the embedded PostgreSQL may have to run as another user.
      chmodSync(this.path, 0o711);
      chmodSync(this.runPath, 0o700);
      chmodSync(this.journalPath, 0o700);
    } catch (error) {
      throw new StartError(`The data directory ${this.path} (DATA_DIR) cannot be used: ${messageOf(error)}.`);
    }
  }

  processFile(role: string): string {
    return join(this.runPath, `${role}.pid`);
  }

  /** Takes the directory for this process and ends what a killed run left behind in it. */
  async take(log: Log): Promise<void> {
    const holder = liveProcess(this.processFile('primary'));
    if (holder !== undefined && holder !== process.pid) {
      throw new StartError(
        `The data directory ${this.path} is in use by process ${holder}: stop it, or set DATA_DIR to another one.`,
      );
    }
    writeProcessFile(this.processFile('primary'), process.pid);
    const leftovers = readdirSync(this.runPath).filter((name) => /^(worker-\d+|analytics)\.pid$/.test(name));
    await Promise.all(leftovers.map((name) => this.#endLeftover(name, log)));
  }

  release(): void {
    removeProcessFile(this.processFile('primary'));
  }

  /**
   * Workers end by themselves when their primary is gone, after a last commit. A journal may only be recovered when its
   * writer is really gone: what it acknowledged late would be missed.
   */
  async #endLeftover(name: string, log: Log): Promise<void> {
    const file = join(this.runPath, name);
    const pid = liveProcess(file);
    if (pid !== undefined) {
      log.warn('leftover_ended', { file: name, leftover: pid });
      const gone = (await endProcess(pid, 'SIGTERM', leftoverWaitMsMax)) || (await endProcess(pid, 'SIGKILL', 1000));
      if (!gone) throw new StartError(`Process ${pid} of a previous run does not end; end it and start again.`);
    }
    removeProcessFile(file);
  }

  /** Made on the first start, 0600; a given admin password is not kept here. */
  secrets(): { secrets: Secrets; fresh: boolean } {
    const path = join(this.path, 'secrets.json');
    try {
      return { secrets: JSON.parse(readFileSync(path, 'utf8')) as Secrets, fresh: false };
    } catch (error) {
      if ((error as NodeJS.ErrnoException).code !== 'ENOENT') {
        throw new StartError(`${path} cannot be read: ${messageOf(error)}.`);
      }
    }
    const secrets: Secrets = {
      clickhousePassword: randomBytes(24).toString('base64url'),
      postgresPassword: randomBytes(24).toString('base64url'),
      adminPassword: randomBytes(12).toString('base64url'),
    };
    this.writePrivate('secrets.json', JSON.stringify(secrets, null, 2));
    return { secrets, fresh: true };
  }

  writePrivate(name: string, text: string): void {
    const path = join(this.path, name);
    writeFileSync(`${path}.new`, `${text}\n`, { mode: 0o600 });
    renameSync(`${path}.new`, path);
  }

  /** Journals of worker slots that are not started any more, and of none other. */
  orphanJournals(workers: number): string[] {
    const names = readdirSync(this.journalPath).filter((name) => /^worker-\d+$/.test(name));
    return names.filter((name) => Number(name.slice(7)) >= workers).map((name) => join(this.journalPath, name));
  }
}
