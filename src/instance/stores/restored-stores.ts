/**
 * Repairs, in the primary, the state after a restore of one store to an earlier moment than the other, after a server
 * of PostgreSQL took over without the last writes, and after a restore of the data directory from a backup. No device
 * number is assigned twice, deletes are carried out again, and reports copy all devices again. After a restore of the
 * data directory no id of a command is assigned twice either. A start without a restore costs three small queries. The
 * repairs are made once for all hosts that share the stores.
 */
import { randomUUID } from 'node:crypto';
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { messageOf } from '../../base/errors.ts';
import type { Log } from '../../base/log.ts';
import { systemScheduler } from '../../base/scheduler.ts';
import type { ClickHouse } from '../../clickhouse/client.ts';
import {
  copyAllDevices,
  greatestCopyVersion,
  greatestDevice,
  greatestDeviceOfPoints,
  raiseNumbers,
  readLastDeviceNumber,
  settleTransactions,
} from '../../device/sql/number-store.ts';
import { reopenTombstones } from '../../erase/tombstone-store.ts';
import type { Postgres } from '../../postgres/client.ts';
import { skipRpcNumbers } from '../../rpc/store.ts';
import { addCopy } from '../../stream/copies-store.ts';
import type { DataDirectory } from '../host/data-directory.ts';
import { restoredFile } from '../host/data-files.ts';

interface RestoredStoresDeps {
  postgres: Postgres;
  data: DataDirectory;
  log: Log;
}

/** The backup from which the directory was made; `pending` until a start has completed the repairs. */
export interface Restored {
  backup: string;
  began: string;
  restored: string;
  /** Names the restore; absent in a directory that an earlier version restored. */
  id?: string;
  pending: boolean;
}

const numbersFile = 'device-numbers.json';
/** More devices than can be made between the last note of their numbers and a loss of PostgreSQL. */
const skippedNumbers = 1_000_000;
const noteMs = 10_000;
/** The time for which a start waits for ClickHouse's answer. */
const clickhouseWaitMsMax = 5_000;

export class RestoredStores {
  readonly #deps: RestoredStoresDeps;
  readonly #path: string;
  readonly #ending = new AbortController();
  /** The greatest number of a device that is known outside of PostgreSQL. */
  #known: number;
  #noted: number;
  #copyVersion = 0;
  #clickhouseAsked: () => void = () => {};
  readonly #clickhouseKnown = new Promise<void>((resolve) => {
    this.#clickhouseAsked = resolve;
  });
  #postgresReady = false;
  #running: Promise<void> = Promise.resolve();
  /** The shards of ClickHouse that have their tables. */
  readonly #clickhouses = new Set<ClickHouse>();
  #raising: Promise<void> = Promise.resolve();
  #isRaising = false;

  constructor(deps: RestoredStoresDeps) {
    this.#deps = deps;
    this.#path = deps.data.path;
    this.#noted = readNumbers(join(this.#path, numbersFile));
    this.#known = this.#noted;
  }

  /** Called when ClickHouse, or a shard of it, has its tables. */
  async clickhousePrepared(clickhouse: ClickHouse): Promise<void> {
    const { log } = this.#deps;
    await this.#ask(clickhouse);
    this.#clickhouses.add(clickhouse);
    this.#clickhouseAsked();
    if (this.#postgresReady) await this.#raise();
    greatestDeviceOfPoints(clickhouse)
      .then(async (greatest) => {
        this.#know(greatest);
        if (this.#postgresReady) await this.#raise();
      })
      .catch((error: unknown) => {
        if (!this.#ending.signal.aborted) log.warn('device_numbers_unread', { reason: messageOf(error) });
      });
  }

  /** Called when ClickHouse does not answer: the repairs of PostgreSQL do not wait for ClickHouse. */
  clickhouseUnavailable(): void {
    this.#clickhouseAsked();
  }

  /** Called when PostgreSQL has its tables, before this start makes a device. */
  async postgresPrepared(): Promise<void> {
    const { signal } = this.#ending;
    const waiting = new AbortController();
    const waited = systemScheduler.sleep(clickhouseWaitMsMax, AbortSignal.any([signal, waiting.signal]));
    await Promise.race([this.#clickhouseKnown, waited]);
    waiting.abort();
    await this.#finishRestore();
    await settleTransactions(this.#deps.postgres);
    await this.#raise();
    if (this.#postgresReady) return;
    this.#postgresReady = true;
    this.#running = this.#noteNumbers();
  }

  /**
   * Called each second with the last number of a device. A server that took over may lack the last numbers, and would
   * give them to other devices.
   */
  polled(lastDevice: number, isOtherServer: boolean): void {
    const isBack = lastDevice < this.#known;
    this.#know(lastDevice);
    // While it runs, the polls still show the lower number.
    if (!this.#postgresReady || !(isOtherServer || (isBack && !this.#isRaising))) return;
    this.#isRaising = true;
    this.#raising = this.#raising
      .then(() => this.#raiseAgain())
      .catch((error: unknown) => this.#deps.log.warn('device_numbers_not_raised', { reason: messageOf(error) }))
      .finally(() => {
        this.#isRaising = false;
      });
  }

  async stop(): Promise<void> {
    this.#ending.abort();
    await Promise.all([this.#running, this.#raising]);
  }

  async #ask(clickhouse: ClickHouse): Promise<void> {
    const [device, version] = await Promise.all([greatestDevice(clickhouse), greatestCopyVersion(clickhouse)]);
    this.#know(device);
    this.#copyVersion = Math.max(this.#copyVersion, version);
  }

  async #raiseAgain(): Promise<void> {
    await this.#raise();
    // A shard that does not answer now has no number above those that the polls have shown, but for the last second.
    await Promise.allSettled([...this.#clickhouses].map((clickhouse) => this.#ask(clickhouse)));
    await this.#raise();
  }

  #know(device: number): void {
    this.#known = Math.max(this.#known, device);
  }

  async #raise(): Promise<void> {
    const { postgres, log } = this.#deps;
    const known = this.#known;
    if (await raiseNumbers(postgres, 'device', known, known + skippedNumbers)) {
      log.warn('device_numbers_raised', { known, next: known + skippedNumbers, reason: 'PostgreSQL lacks them' });
    }
    if (await raiseNumbers(postgres, 'copy', this.#copyVersion, this.#copyVersion + skippedNumbers)) {
      await copyAllDevices(postgres);
    }
  }

  /** Runs once after `npm run restore`; repeated when a start ends in the middle. */
  async #finishRestore(): Promise<void> {
    const { postgres, data, log } = this.#deps;
    const restored = readRestored(join(this.#path, restoredFile));
    if (!restored?.pending) return;
    const last = Math.max(await readLastDeviceNumber(postgres), this.#known);
    await raiseNumbers(postgres, 'device', last + 1, last + skippedNumbers);
    // A device may still reply to commands that were sent after the backup.
    await skipRpcNumbers(postgres, skippedNumbers);
    await copyAllDevices(postgres);
    await addCopy(postgres, restored.id ?? randomUUID());
    // Journals of the backup ship their rows again, and rows deleted between the snapshots of the stores exist again.
    await reopenTombstones(postgres);
    data.keepPrivate(restoredFile, JSON.stringify({ ...restored, pending: false } satisfies Restored));
    log.info('restored', { backup: restored.backup, began: restored.began });
  }

  /** Keeps device numbers whose rows are only in a journal, in case PostgreSQL is lost. */
  async #noteNumbers(): Promise<void> {
    const { postgres, data, log } = this.#deps;
    const { signal } = this.#ending;
    while (!signal.aborted) {
      try {
        const last = await readLastDeviceNumber(postgres);
        if (last > this.#noted) data.writePrivate(numbersFile, JSON.stringify({ last }));
        this.#noted = Math.max(this.#noted, last);
      } catch (error) {
        log.debug('device_numbers_note', { reason: messageOf(error) });
      }
      await systemScheduler.sleep(noteMs, signal);
    }
  }
}

function readNumbers(path: string): number {
  const { last } = readJson<{ last: number }>(path) ?? { last: 0 };
  return Number.isSafeInteger(last) && last > 0 ? last : 0;
}

function readRestored(path: string): Restored | undefined {
  return readJson<Restored>(path);
}

function readJson<Content>(path: string): Content | undefined {
  try {
    return JSON.parse(readFileSync(path, 'utf8')) as Content;
  } catch {
    return undefined;
  }
}
