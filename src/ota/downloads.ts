/**
 * Finds the file that a device requests, by title and version or as its assigned file; a device gets only assigned
 * files. HTTP devices fetch a file in thousands of chunks, so an assignment is cached for a moment. A cached assignment
 * may grant a request; only the store refuses one.
 */
import type { Clock } from '../base/clock.ts';
import { badRequest, notFound, unavailable } from '../base/errors.ts';
import { FifoMap } from '../base/fifo-map.ts';
import { limits } from '../base/limits.ts';
import type { Metrics } from '../base/metrics/metrics.ts';
import { Turns } from '../base/turns.ts';
import type { Postgres } from '../postgres/client.ts';
import { PieceCache } from './chunks.ts';
import { isStored, nounOf, type OtaPackage, type PackageType, type StoredPackage } from './package.ts';
import { findAssigned, findPiece, findTitle } from './store.ts';

interface DownloadDevice {
  id: string;
  number: number;
  tenantId: string;
}

interface Remembered {
  assigned: StoredPackage;
  /** Monotonic milliseconds. */
  until: number;
}

export class Downloads {
  readonly pieces: PieceCache;
  readonly #queries: Postgres;
  readonly #clock: Clock;
  readonly #turns = new Turns({
    atOnceMax: limits.otaLookUpsAtOnceMax,
    waitingMax: limits.otaLookUpsWaitingMax,
    refusal: () => unavailable('ota_lookups', 'Too many devices ask for their packages at once; ask again.'),
  });
  readonly #remembered = {
    FIRMWARE: new FifoMap<number, Remembered>(limits.otaAssignmentsMax),
    SOFTWARE: new FifoMap<number, Remembered>(limits.otaAssignmentsMax),
  };

  /** Reads of assignments that run: the answer is not remembered when the device changed meanwhile. */
  readonly #reads = new Set<{ readonly device: number; isOutdated: boolean }>();

  constructor({ postgres, clock, metrics }: { postgres: Postgres; clock: Clock; metrics: Metrics }) {
    this.#queries = postgres;
    this.#clock = clock;
    const loads = metrics.counter('ota_piece_loads_total', 'Pieces of package files read from the database.');
    const load = async (packageId: string, number: number) => {
      loads.add(1);
      const piece = await findPiece(postgres, packageId, number);
      if (!piece) throw notFound('The package was deleted.');
      return piece;
    };
    metrics.observed('ota_piece_bytes', 'Bytes of package files in memory.', () => this.pieces.bytes);
    this.pieces = new PieceCache(load, limits.otaPieceCacheBytesMax, limits.otaPieceLoadsMax);
  }

  async find(device: DownloadDevice, type: PackageType, title: string, version: string): Promise<StoredPackage> {
    const remembered = this.remembered(device, type, title, version);
    if (remembered) return remembered;
    return await this.#inTurn(device, async () => {
      const read = { device: device.number, isOutdated: false };
      this.#reads.add(read);
      try {
        const assigned = await findAssigned(this.#queries, device.id, type);
        if (!assigned || !isAsked(assigned, title, version)) throw await this.#refusal(device, type, title, version);
        if (!isStored(assigned)) throw notFound(`This ${nounOf[type]} is not stored here but at its URL.`);
        const until = this.#clock.monotonic() + limits.otaAssignmentMs;
        if (!read.isOutdated) this.#remembered[type].set(device.number, { assigned, until });
        return assigned;
      } finally {
        this.#reads.delete(read);
      }
    });
  }

  /** Returns the package assigned to the device, directly or by its profile; the file may be at a URL. */
  assigned(device: DownloadDevice, type: PackageType): Promise<OtaPackage | undefined> {
    return this.#inTurn(device, () => findAssigned(this.#queries, device.id, type));
  }

  /** Returns the file if the device requested it a moment ago, without a promise. */
  remembered(
    { number }: { number: number },
    type: PackageType,
    title: string,
    version: string,
  ): StoredPackage | undefined {
    const remembered = this.#remembered[type].get(number);
    if (!remembered || remembered.until <= this.#clock.monotonic()) return undefined;
    return isAsked(remembered.assigned, title, version) ? remembered.assigned : undefined;
  }

  /** Called when the device changed. */
  forget(deviceNumber: number): void {
    this.#remembered.FIRMWARE.delete(deviceNumber);
    this.#remembered.SOFTWARE.delete(deviceNumber);
    for (const read of this.#reads) if (read.device === deviceNumber) read.isOutdated = true;
  }

  forgetAll(): void {
    this.#remembered.FIRMWARE.clear();
    this.#remembered.SOFTWARE.clear();
    for (const read of this.#reads) read.isOutdated = true;
  }

  #inTurn<T>({ number, tenantId }: DownloadDevice, look: () => Promise<T>): Promise<T> {
    return this.#turns.run(tenantId, `device ${number}`, look);
  }

  async #refusal({ tenantId }: DownloadDevice, type: PackageType, title: string, version: string) {
    const noun = nounOf[type];
    // PostgreSQL takes no NUL in a string.
    const known = `${title}${version}`.includes('\0')
      ? { title: false, version: false }
      : await findTitle(this.#queries, tenantId, type, title, version);
    if (!known.title) return notFound(`There is no ${noun} with the title '${short(title)}'.`);
    if (!known.version) return notFound(`The ${noun} '${short(title)}' has no version '${short(version)}'.`);
    const name = `'${short(title)}' version '${short(version)}'`;
    return badRequest('not_assigned', `The ${noun} ${name} exists, but it is not assigned to this device.`);
  }
}

function isAsked(assigned: OtaPackage, title: string, version: string): boolean {
  return assigned.title === title && assigned.version === version;
}

function short(text: string): string {
  return text.slice(0, 100);
}
