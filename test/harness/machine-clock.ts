/** The clock of a machine, or of one of its programs, that tests set (`faketime`). */
import { execFileSync } from 'node:child_process';
import { chmodSync, mkdtempSync, renameSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';

export class MachineClock {
  readonly #directory = mkdtempSync(join(tmpdir(), 'millrace-clock-'));
  readonly #file = join(this.#directory, 'offset');
  /** The environment with which a process reads this clock. */
  readonly environment: Record<string, string>;

  constructor() {
    // PostgreSQL runs under an account of its own.
    chmodSync(this.#directory, 0o755);
    this.set(0);
    this.environment = {
      LD_PRELOAD: execFileSync('faketime', ['-f', '+0', 'printenv', 'LD_PRELOAD'], { encoding: 'utf8' }).trim(),
      FAKETIME_TIMESTAMP_FILE: this.#file,
      FAKETIME_CACHE_DURATION: '1',
      FAKETIME_DONT_FAKE_MONOTONIC: '1',
      NO_FAKE_STAT: '1',
    };
  }

  /** Sets the clock so many seconds from the right time. */
  set(seconds: number): void {
    // Whole at any moment: the library reads it once a second.
    writeFileSync(`${this.#file}.new`, `${seconds < 0 ? '' : '+'}${seconds}`);
    chmodSync(`${this.#file}.new`, 0o644);
    renameSync(`${this.#file}.new`, this.#file);
  }

  /** Runs `start`, whose children inherit the environment of this process, with this clock. */
  async around<T>(start: () => Promise<T>): Promise<T> {
    const before = { ...process.env };
    Object.assign(process.env, this.environment);
    try {
      return await start();
    } finally {
      for (const name of Object.keys(this.environment)) delete process.env[name];
      Object.assign(process.env, before);
    }
  }

  remove(): void {
    rmSync(this.#directory, { recursive: true, force: true });
  }
}
