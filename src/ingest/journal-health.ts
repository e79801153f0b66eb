/**
 * Decides ten times a second whether the journal can take telemetry, so that a message costs one comparison: the reason
 * for which every sender is refused, and the shares of senders while the journal fills. Asked by `accept.ts`.
 */
import type { Clock } from '../base/clock.ts';
import { type Fault, unavailable } from '../base/errors.ts';
import type { Log } from '../base/log.ts';
import { sizeText } from '../base/size-text.ts';
import type { TakesFrames } from '../journal/seam.ts';
import { BacklogShares } from './backlog-shares.ts';
import { ShareRefusals } from './share-refusals.ts';

interface JournalHealthDeps {
  journal: TakesFrames;
  clock: Clock;
  log: Log;
  backlogBytesMax: number;
  freeDiskBytesMin: number;
  unsyncedMsMax: number;
  /** `ingest.ack: stream`: why the stream takes nothing now. A slow stream has a refusal of its own. */
  streamRefusal?: (() => Fault | undefined) | undefined;
}

export const checkIntervalMs = 100;
const loopLagMsMax = 500;
/** After refusing for this long because of its lag, a starved process accepts messages until the next check. */
const lagRefusedMsMax = 2_000;
/** Telemetry is refused for this long after the disk refused a write. */
const failedMs = 1_000;

export class JournalHealth {
  readonly #deps: JournalHealthDeps;
  refusal: Fault | undefined;
  /** Undefined while less than half of the journal waits for ClickHouse. */
  shares: BacklogShares | undefined;
  readonly #shareRefusals: ShareRefusals;
  /** Monotonic time at which the running write began; 0 = none runs. */
  #writingSince = 0;
  #failed: { fault: Fault; until: number } | undefined;
  /** Monotonic time since when messages are refused for the lag of the event loop; 0 = not refused. */
  #laggingSince = 0;
  /** True when the last check was late as well. */
  #wasLate = false;
  #lastCheck: number;

  constructor(deps: JournalHealthDeps) {
    this.#deps = deps;
    this.#lastCheck = deps.clock.monotonic();
    this.#shareRefusals = new ShareRefusals(deps.log);
  }

  writeBegan(at: number): void {
    this.#writingSince = at;
  }

  writeEnded(): void {
    this.#writingSince = 0;
  }

  /** Called when the disk refused a write: messages are refused with `fault` for a while. */
  writeFailed(fault: Fault): void {
    this.#failed = { fault, until: this.#deps.clock.monotonic() + failedMs };
  }

  check(): void {
    const { clock, journal, backlogBytesMax, freeDiskBytesMin, unsyncedMsMax, streamRefusal } = this.#deps;
    const now = clock.monotonic();
    const isLagging = this.#noticeLag(now);
    // Hysteresis of ten percent keeps a refusal from toggling at its threshold. Only the reason of the present refusal
    // has it.
    const { reason } = this.refusal ?? {};
    const backlogSlack = reason === 'backlog_full' ? 0.9 : 1;
    const diskSlack = reason === 'disk_full' ? 0.9 : 1;
    const ofStream = streamRefusal?.();
    const isSlow = this.#writingSince > 0 && now - this.#writingSince > unsyncedMsMax;
    if (ofStream !== undefined) this.refusal = ofStream;
    else if (journal.backlogDiskBytes > backlogBytesMax * backlogSlack) this.refusal = backlogFull(backlogBytesMax);
    else if (journal.freeBytes() * diskSlack < freeDiskBytesMin) this.refusal = diskBelow(freeDiskBytesMin);
    else if (this.#failed !== undefined && now < this.#failed.until) this.refusal = this.#failed.fault;
    else if (isSlow && streamRefusal === undefined) this.refusal = slowDisk();
    else if (isLagging && this.#isLagRefused(now)) this.refusal = loopLag();
    else this.refusal = undefined;
    if (this.refusal?.reason !== 'loop_lag') this.#laggingSince = 0;
    this.#shareBacklog();
    this.#shareRefusals.check(now, this.shares !== undefined);
  }

  /**
   * Returns true when this check and the last one were late. One late check may be a process that did not run for a
   * moment: a sync that ended meanwhile went unnoticed.
   */
  #noticeLag(now: number): boolean {
    const lagMs = now - this.#lastCheck - checkIntervalMs;
    this.#lastCheck = now;
    const isLate = lagMs > loopLagMsMax;
    const isLagging = isLate && this.#wasLate;
    this.#wasLate = isLate;
    if (isLate && this.#writingSince > 0) this.#writingSince = Math.min(now, this.#writingSince + lagMs);
    return isLagging;
  }

  #isLagRefused(now: number): boolean {
    if (this.#laggingSince === 0) this.#laggingSince = now;
    return now - this.#laggingSince < lagRefusedMsMax;
  }

  /** The journal ends at its own limit, or where the disk does. */
  #shareBacklog(): void {
    const { journal, backlogBytesMax, freeDiskBytesMin } = this.#deps;
    const waiting = journal.backlogDiskBytes;
    const onDisk = Math.max(0, journal.freeBytes() - freeDiskBytesMin);
    const half = Math.min(backlogBytesMax, waiting + onDisk) / 2;
    if (waiting <= half) {
      this.shares = undefined;
      return;
    }
    this.shares ??= new BacklogShares((kind, id) => this.#shareRefusals.add(kind, id, this.#deps.clock.monotonic()));
    this.shares.update(2 * half - waiting, waiting - half);
  }
}

function loopLag(): Fault {
  return unavailable('loop_lag', 'This server is overloaded; send again.');
}

export function slowDisk(): Fault {
  return unavailable('journal_slow', 'The disk of the journal is too slow for what comes in; send again.');
}

export function diskFull(): Fault {
  return unavailable('disk_full', 'The disk of the journal is full; free space or add to it (DATA_DIR).', 5);
}

export function journalFailed(): Fault {
  return unavailable('journal_failed', 'The journal could not be written.');
}

function diskBelow(bytesMin: number): Fault {
  const message =
    `The disk of the journal is full: less than ${sizeText(bytesMin)} are free (JOURNAL_FREE_DISK_BYTES_MIN); ` +
    'free space or add to it (DATA_DIR).';
  return unavailable('disk_full', message, 5);
}

/** Refuses only the devices of the shard: the others are stored. */
export function shardBehind(shard: number, bytesMax: number): Fault {
  const message =
    `Shard ${shard} of ClickHouse has taken no rows for long: ${sizeText(bytesMax)} of this worker wait for it ` +
    '(half of JOURNAL_BACKLOG_BYTES_MAX). Devices of other shards are served; send again when it works.';
  return unavailable('backlog_full', message, 5);
}

function backlogFull(bytesMax: number): Fault {
  const message =
    `ClickHouse has not taken data for so long that the journal holds its limit of ${sizeText(bytesMax)} ` +
    '(JOURNAL_BACKLOG_BYTES_MAX).';
  return unavailable('backlog_full', message, 5);
}
