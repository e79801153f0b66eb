/**
 * Serves files of firmware and software in chunks (docs/mqtt.md#firmware-and-software). The payload of a request on
 * `v2/fw/request/{rid}/chunk/{n}` is the size of a chunk; the answer on `v2/fw/response/{rid}/chunk/{n}` is empty after
 * the end of the file. Software has the topics `v2/sw/…`. All requests of one connection with the same `rid` are one
 * download, which keeps the package and the size of its first request. An error is also sent as a word on
 * `v2/fw/error`, and the connection stays. Without a size the whole file is one message. A file that is too large for
 * a message, or for the client's Maximum Packet Size, fails the update: `fw_state` is FAILED, and `fw_error` is the
 * reason for an administrator.
 */

import type { Admission } from '../../activity/admission.ts';
import { ByteBudget } from '../../base/byte-budget.ts';
import { badRequest, Fault, notFound, unavailable } from '../../base/errors.ts';
import { limits } from '../../base/limits.ts';
import { Places, placeOwners } from '../../base/places.ts';
import { type ByteRange, chunkRange, readAll, type SlicedFile } from '../../ota/chunks.ts';
import type { Downloads } from '../../ota/downloads.ts';
import { failedSeries } from '../../ota/effects.ts';
import { isStored, nounOf, type PackageType, prefixOf, type StoredPackage } from '../../ota/package.ts';
import { appendSeries, type SeriesIngest } from '../../ota/series.ts';
import { type Operation, run } from '../session/operation.ts';
import type { Session } from '../session/session.ts';
import { trySendAnswer } from './answer.ts';
import type { TopicEntries } from './table.ts';

export interface FirmwareTopicsDeps {
  admission: Admission;
  downloads: Downloads;
  /** Stores the telemetry of a failed update. */
  ingest: SeriesIngest;
  /** The largest size of a chunk that a request may name. */
  packetBytesMax: number;
}

interface Download {
  /** Undefined before the first request, and after a failed one. */
  file: Promise<StoredPackage> | undefined;
  /** Bytes of a chunk; 0 = the whole file. */
  size: number;
  /** True when the failure to send the whole file was reported to the administrator. */
  hasFailed: boolean;
}

interface ChunkRequest {
  rid: string;
  chunk: number;
  /** Undefined = the size of the last request with this `rid`. */
  size: number | undefined;
}

type ErrorWord = 'NOT_FOUND' | 'PAYLOAD_TOO_LARGE' | 'FAILURE';

/** A fault that is also sent as a word. */
class DownloadFault extends Fault {
  readonly word: ErrorWord;

  constructor(word: ErrorWord, { reason, message }: Fault) {
    super(reason, message);
    this.word = word;
  }
}

export function firmwareTopics(deps: FirmwareTopicsDeps): TopicEntries {
  const room = { bytes: new ByteBudget(limits.otaMessageBytesInFlightMax), files: new Places(limits.mqttFilesMax) };
  return {
    prefixes: {
      'v2/fw/request/': new PackageTopic(deps, room, 'FIRMWARE').operation,
      'v2/sw/request/': new PackageTopic(deps, room, 'SOFTWARE').operation,
    },
    // Clients also subscribe to the short form without the chunk, and mean the chunks.
    answers: ['fw', 'sw'].flatMap((kind) => [
      `v2/${kind}/response/+/chunk/+`,
      `v2/${kind}/response/+`,
      `v2/${kind}/error`,
    ]),
  };
}

/** The files that are being sent to all clients of the worker. */
interface SendingRoom {
  /** Bytes of files and chunks that are sent as one message from memory. */
  bytes: ByteBudget;
  /** Larger files, which are sent slice by slice. */
  files: Places;
}

/** Serves the requests for packages of one type. */
class PackageTopic {
  readonly #deps: FirmwareTopicsDeps;
  readonly #room: SendingRoom;
  readonly #type: PackageType;
  readonly #topic: string;
  readonly #downloads = new WeakMap<Session, Map<string, Download>>();

  constructor(deps: FirmwareTopicsDeps, room: SendingRoom, type: PackageType) {
    this.#deps = deps;
    this.#room = room;
    this.#type = type;
    this.#topic = `v2/${prefixOf[type]}`;
  }

  readonly operation: Operation = (publish, argument) => {
    const { admission, packetBytesMax } = this.#deps;
    const { session, payload } = publish;
    const parts = argumentForm.exec(argument);
    if (!parts) throw unknownTopic;
    admission.count(session.device);
    try {
      const request = { rid: parts[1]!, chunk: Number(parts[2]), size: sizeOf(payload, packetBytesMax) };
      admission.touch(session.device);
      const download = downloadOf(this.#downloads, session, request);
      run(publish, () => this.#serve(session, download, request));
    } catch (error) {
      this.#sendWord(session, error);
      throw error;
    }
  };

  async #serve(session: Session, download: Download, request: ChunkRequest): Promise<void> {
    try {
      await this.#sendChunk(session, download, request);
    } catch (error) {
      // No package is assigned, or the assigned one was deleted: the next request checks again.
      if (error instanceof Fault && error.status !== 400) download.file = undefined;
      this.#sendWord(session, error);
      throw error;
    }
  }

  async #sendChunk(session: Session, download: Download, { rid, chunk }: ChunkRequest): Promise<void> {
    const { downloads } = this.#deps;
    const file = await (download.file ??= assignedFile(downloads, session, this.#type));
    const range = rangeOf(file, download.size, chunk);
    const answer = `${this.#topic}/response/${rid}/chunk/${chunk}`;
    const isWhole = download.size === 0 && chunk === 0;
    if (isWhole && file.dataSize > limits.otaMessageBytesMax) {
      await this.#sendInSlices(session, download, file, answer);
      return;
    }
    const bytes = range.end - range.start;
    const owners = [{ name: session.device.tenantId, bytesMax: limits.otaMessageBytesInFlightPerTenantMax }];
    if (!this.#room.bytes.take(bytes, owners)) throw busy;
    const arrived = () => this.#room.bytes.release(bytes, owners);
    let isTaken = false;
    try {
      const part = downloads.pieces.peek(file.id, range) ?? (await readAll(downloads.pieces, file, range));
      isTaken = session.push(answer, part, session.subscriptions.qosOf(answer), arrived);
    } finally {
      if (!isTaken) arrived();
    }
    if (isTaken || session.isGone) return;
    if (isWhole) await this.#failUpdate(session, download, file);
    throw tooLargeFor('than the Maximum Packet Size of your CONNECT');
  }

  /** Sends a whole file that is too large for memory. */
  async #sendInSlices(session: Session, download: Download, file: StoredPackage, answer: string): Promise<void> {
    const { pieces } = this.#deps.downloads;
    const { files } = this.#room;
    const owners = placeOwners(session.device.tenantId, session.device.customerId);
    if (files.outcome(owners) !== 'taken') throw busy;
    const { dataSize } = file;
    // The first slice is read before anything is sent, so that an unavailable store still gives a clean refusal.
    const slices: SlicedFile = { bytes: dataSize, slice: (at) => pieces.read(file, at, dataSize) };
    await slices.slice(0);
    if (files.take(owners) !== 'taken') throw busy;
    const ended = () => files.release(owners);
    const outcome = session.sendFile(answer, slices, session.subscriptions.qosOf(answer), ended);
    if (outcome === 'taken') return;
    ended();
    if (outcome === 'busy')
      throw unavailable('ota_busy', 'Another file is being sent to this device; send the request again.');
    if (outcome === 'gone') return;
    await this.#failUpdate(session, download, file);
    throw tooLargeFor('than one message, or than the Maximum Packet Size of your CONNECT');
  }

  /** Reports a failed update once for each download. The device may continue: chunks are still served. */
  async #failUpdate({ device }: Session, download: Download, { dataSize }: StoredPackage): Promise<void> {
    if (download.hasFailed) return;
    download.hasFailed = true;
    const reason =
      `The ${nounOf[this.#type]} has ${dataSize} bytes and was asked for in one message, which is more than ` +
      'the device (its Maximum Packet Size) or MQTT (268435455 bytes) takes. The device must ask for chunks.';
    await appendSeries(this.#deps.ingest, device.number, failedSeries(this.#type, reason));
  }

  #sendWord(session: Session, error: unknown): void {
    const word = error instanceof DownloadFault ? error.word : 'FAILURE';
    if (error instanceof Fault) trySendAnswer(session, `${this.#topic}/error`, word);
  }
}

const busy = unavailable('ota_busy', 'Too many files are being sent at the moment; send the request again.');

const argumentForm = /^(-?\d{1,19})\/chunk\/(\d{1,10})$/;

const unknownTopic = new Fault(
  'unknown_topic',
  'The topic of a request must be v2/fw/request/{rid}/chunk/{n} or v2/sw/request/{rid}/chunk/{n}, with whole numbers.',
);

function sizeOf(payload: Buffer, sizeMax: number): number | undefined {
  if (payload.length === 0) return undefined;
  const text = payload.toString('latin1', 0, Math.min(payload.length, 64)).trim();
  if (!/^\d+$/.test(text)) throw badRequest('ota_size', 'The payload must be the size of a chunk in digits, or empty.');
  if (payload.length > 64 || Number(text) > sizeMax) throw tooLargeFor(`than ${sizeMax} bytes`);
  return Number(text);
}

function downloadOf(table: WeakMap<Session, Map<string, Download>>, session: Session, request: ChunkRequest): Download {
  let downloads = table.get(session);
  if (!downloads) table.set(session, (downloads = new Map()));
  let download = downloads.get(request.rid);
  if (download) {
    // The last entry of the map is the download used last.
    downloads.delete(request.rid);
  } else {
    download = { file: undefined, size: 0, hasFailed: false };
    if (downloads.size >= limits.otaDownloadsPerSessionMax) downloads.delete(downloads.keys().next().value!);
  }
  downloads.set(request.rid, download);
  if (request.size !== undefined) download.size = request.size;
  return download;
}

async function assignedFile(downloads: Downloads, { device }: Session, type: PackageType): Promise<StoredPackage> {
  const assigned = await downloads.assigned(device, type);
  if (!assigned) throw new DownloadFault('NOT_FOUND', notFound(`No ${nounOf[type]} is assigned to this device.`));
  if (isStored(assigned)) return assigned;
  throw new DownloadFault('FAILURE', notFound(`The ${nounOf[type]} of this device is not stored here but at its URL.`));
}

/** Returns the range of a chunk; without a size the whole file is chunk 0. */
function rangeOf(file: StoredPackage, size: number, chunk: number): ByteRange {
  if (size > 0) return chunkRange(file.dataSize, size, chunk);
  if (chunk > 0) return { start: file.dataSize, end: file.dataSize };
  return { start: 0, end: file.dataSize };
}

function tooLargeFor(what: string): DownloadFault {
  const message = `The chunk is larger ${what}; ask for smaller ones.`;
  return new DownloadFault('PAYLOAD_TOO_LARGE', badRequest('ota_chunk_size', message));
}
