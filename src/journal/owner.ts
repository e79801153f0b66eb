/**
 * Decides which process owns a journal directory. The file `epoch` contains the number of the owner's start and a
 * random id. The lock of the data directory excludes two owners on one host. `epoch` excludes them where this lock does
 * not work (a network volume without flock). A start writes its id before it reads frames. An owner acknowledges only
 * while it knows that its id was in the file at most `leaseMs` ago. So every acknowledged frame of the earlier owner is
 * on the disk before the later owner reads frames.
 *
 * check of the earlier owner began < id of the later owner written
 * acknowledged ≤ check began + leaseMs < id written + takeoverWaitMs ≤ recovery began
 *
 * Each duration is measured by the monotonic clock of one host; the two differ by far more than such clocks drift.
 */
import { randomBytes } from 'node:crypto';
import type { Clock } from '../base/clock.ts';
import { messageOf } from '../base/errors.ts';
import type { Log } from '../base/log.ts';
import { bootId } from '../base/process-file.ts';
import type { Scheduler } from '../base/scheduler.ts';
import { type Disk, isNoSpace, readWhole, readWholeAround, replaceWhole } from './disk.ts';

const leaseMs = 200;
const takeoverWaitMs = 300;

interface OwnerDeps {
  disk: Disk;
  dir: string;
  clock: Clock;
  scheduler: Pick<Scheduler, 'sleep'>;
  log: Log;
  /** The highest epoch in names of segments and in the position. */
  epochMax: number;
  /** True when the caller holds a lock that every earlier owner of this boot of this host held for its whole life. */
  locked: boolean;
}

export class Owner {
  readonly #deps: OwnerDeps;
  /** The content of the file `epoch` while this owner has the directory; undefined: no file. */
  readonly text: string | undefined;
  /** The content of the file `epoch` before this owner took the directory; undefined: no file. */
  readonly earlierText: string | undefined;
  #checkedMs: number;
  #checking: Promise<boolean> | undefined;
  /** Unique for each start: names of segments are never repeated, even after other losses. */
  readonly epoch: number;
  /** True when the earlier owner may still run and write: then no file that this owner may have open is recycled. */
  readonly contested: boolean;
  /** True when another process has taken the directory. Final. */
  lost = false;

  private constructor(
    deps: OwnerDeps,
    epoch: number,
    { text, before, contested }: { text: string | undefined; before: string | undefined; contested: boolean },
  ) {
    this.#deps = deps;
    this.text = text;
    this.earlierText = before;
    this.#checkedMs = deps.clock.monotonic();
    this.epoch = epoch;
    this.contested = contested;
  }

  /** Takes the directory. When `take` returns, an earlier owner acknowledges nothing more. */
  static async take(deps: OwnerDeps): Promise<Owner> {
    const { disk, dir, log, locked, epochMax } = deps;
    const path = `${dir}/epoch`;
    const before = (await readWholeAround(disk, path))?.toString('latin1');
    const earlier = parseEpoch(before);
    const epoch = Math.max(earlier.epoch, epochMax) + 1;
    const text = `${epoch} ${randomBytes(16).toString('hex')} ${bootId()}\n`.padEnd(fileBytes);
    const written = await write(deps, path, text, before);
    const contested = earlier.boot !== undefined && !(locked && earlier.boot === bootId());
    if (contested) {
      log.warn('journal_taken_over', { dir, epoch, reason: 'the earlier owner may still be alive' });
      await deps.scheduler.sleep(takeoverWaitMs);
    }
    return new Owner(deps, epoch, { text: written ? text : before, before, contested });
  }

  /** True when no other process had taken the directory at most `leaseMs` ago. */
  get valid(): boolean {
    return !this.lost && this.#deps.clock.monotonic() - this.#checkedMs <= leaseMs;
  }

  get lostReason(): string {
    return `another process has taken the journal ${this.#deps.dir}: two instances use one DATA_DIR, stop one of them`;
  }

  /** Begins a check when the last one is half the lease old, so that no append waits for it. */
  refresh(): void {
    if (this.#deps.clock.monotonic() - this.#checkedMs > leaseMs / 2) void this.#check();
  }

  /** Resolves true when no other process had taken the directory at this call, or at most `leaseMs` ago. */
  async holds(): Promise<boolean> {
    // A check that is running may be too old when it ends. One more check is recent enough.
    if (!this.valid) await this.#checking;
    if (!this.valid && !this.lost) await this.#check();
    return !this.lost;
  }

  #check(): Promise<boolean> {
    this.#checking ??= this.#checkOnce().finally(() => {
      this.#checking = undefined;
    });
    return this.#checking;
  }

  async #checkOnce(): Promise<boolean> {
    const { disk, dir, clock, log } = this.#deps;
    const began = clock.monotonic();
    try {
      const text = (await readWhole(disk, `${dir}/epoch`))?.toString('latin1');
      if (text !== this.text) this.lost = true;
    } catch (error) {
      // An unreadable file (a bad sector, no free descriptor) does not prove another owner.
      log.warn('journal_owner_unknown', { dir, reason: messageOf(error) });
    }
    this.#checkedMs = began;
    if (this.lost) log.error('journal_lost', { dir, reason: this.lostReason });
    return !this.lost;
  }
}

/** All contents have one size: a full disk has room for the next content. */
const fileBytes = 128;

/** Returns false when the disk is so full that even the bytes of the existing file cannot be replaced. */
async function write(deps: OwnerDeps, path: string, text: string, before: string | undefined): Promise<boolean> {
  const { disk, dir, log } = deps;
  const bytes = Buffer.from(text, 'latin1');
  try {
    await replaceWhole(disk, path, [bytes]);
    return true;
  } catch (error) {
    // A full disk must not prevent shipping. Once the epoch is used, names of segments and the position contain it too.
    if (!isNoSpace(error)) throw error;
  }
  await disk.remove(`${path}.tmp`).catch(() => {});
  if (before !== undefined && before.length >= fileBytes) {
    const file = await disk.open(path, 'log');
    try {
      await file.write([bytes], 0);
      return true;
    } catch (error) {
      if (!isNoSpace(error)) throw error;
    } finally {
      await file.close();
    }
  }
  log.warn('journal_epoch_not_written', { dir });
  return false;
}

/** Earlier versions wrote only the epoch. */
function parseEpoch(text: string | undefined): { epoch: number; id?: string; boot?: string } {
  const match = /^(\d{1,10})(?: ([0-9a-f]{32}) (\S*))?\s*$/.exec(text ?? '');
  if (!match) return { epoch: 0 };
  const epoch = Number(match[1]);
  return match[2] === undefined ? { epoch } : { epoch, id: match[2], boot: match[3]! };
}
