/**
 * Files of firmware and software in chunks (docs/mqtt.md#firmware-and-software): `v2/fw/request/{rid}/chunk/{n}` with
 * the size of a chunk as payload is answered on `v2/fw/response/{rid}/chunk/{n}`, empty after the end of the file. A
 * download is what a connection asks for under one `rid`: it keeps the package and the size of its first request.
 * An error is also sent as a word on `v2/fw/error` (software: `v2/sw/…`), and the connection stays. Without a
 * size the whole file is one message; one that no message can hold, or that is above the client's Maximum Packet
 * Size, fails the update: `fw_state` is FAILED and `fw_error` the reason, for an administrator to see.
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
import { isAnswered } from './answer.ts';
import type { TopicEntries } from './table.ts';

export interface FirmwareTopicsDeps {
  admission: Admission;
  downloads: Downloads;
  /** Stores the telemetry of a failed update. */
  ingest: SeriesIngest;
  /** The largest chunk. */
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

/** A decoded request. */
interface Asked {
  rid: string;
  chunk: number;
  /** Undefined: the size of the last request with this `rid`. */
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

export function firmwareTopics({ admission, downloads, ingest, packetBytesMax }: FirmwareTopicsDeps): TopicEntries {
  const bytesInFlight = new ByteBudget(limits.otaMessageBytesInFlightMax);
  const filesOnTheirWay = new Places(limits.mqttFilesMax);

  const operationOf = (type: PackageType): Operation => {
    const topic = `v2/${prefixOf[type]}`;
    const downloadsOf = new WeakMap<Session, Map<string, Download>>();

    const serve = async (session: Session, download: Download, { rid, chunk }: Asked): Promise<void> => {
      const file = await (download.file ??= assignedFile(downloads, session, type));
      const range = rangeOf(file, download.size, chunk);
      const answer = `${topic}/response/${rid}/chunk/${chunk}`;
      const isWhole = download.size === 0 && chunk === 0;
      if (isWhole && file.dataSize > limits.otaMessageBytesMax) {
        await serveWhole(session, download, file, answer);
        return;
      }
      const bytes = range.end - range.start;
      const owners = [{ name: session.device.tenantId, bytesMax: limits.otaMessageBytesInFlightPerTenantMax }];
      if (!bytesInFlight.take(bytes, owners)) throw busy;
      const arrived = () => bytesInFlight.release(bytes, owners);
      let isTaken = false;
      try {
        const part = downloads.pieces.peek(file.id, range) ?? (await readAll(downloads.pieces, file, range));
        isTaken = session.push(answer, part, session.subscriptions.qosOf(answer), arrived);
      } finally {
        if (!isTaken) arrived();
      }
      if (isTaken || session.isGone) return;
      if (isWhole) await fail(session, download, file);
      throw tooLargeFor('than the Maximum Packet Size of your CONNECT');
    };

    /** Sends a file of any size slice by slice. */
    const serveWhole = async (session: Session, download: Download, file: StoredPackage, answer: string) => {
      const owners = placeOwners(session.device.tenantId, session.device.customerId);
      if (filesOnTheirWay.outcome(owners) !== 'taken') throw busy;
      const { dataSize } = file;
      // The first slice is read before anything is sent, so that an unavailable store still gives a clean refusal.
      const slices: SlicedFile = { bytes: dataSize, slice: (at) => downloads.pieces.read(file, at, dataSize) };
      await slices.slice(0);
      if (filesOnTheirWay.take(owners) !== 'taken') throw busy;
      const ended = () => filesOnTheirWay.release(owners);
      const outcome = session.sendFile(answer, slices, session.subscriptions.qosOf(answer), ended);
      if (outcome === 'taken') return;
      ended();
      if (outcome === 'busy')
        throw unavailable('ota_busy', 'Another file is being sent to this device; send the request again.');
      if (outcome === 'gone') return;
      await fail(session, download, file);
      throw tooLargeFor('than one message, or than the Maximum Packet Size of your CONNECT');
    };

    /** Reports once for each download. The device may continue: chunks are still served. */
    const fail = async ({ device }: Session, download: Download, { dataSize }: StoredPackage): Promise<void> => {
      if (download.hasFailed) return;
      download.hasFailed = true;
      const reason =
        `The ${nounOf[type]} has ${dataSize} bytes and was asked for in one message, which is more than ` +
        'the device (its Maximum Packet Size) or MQTT (268435455 bytes) takes. The device must ask for chunks.';
      await appendSeries(ingest, device.number, failedSeries(type, reason));
    };

    const sendWord = (session: Session, error: unknown): void => {
      const word = error instanceof DownloadFault ? error.word : 'FAILURE';
      if (error instanceof Fault) isAnswered(session, `${topic}/error`, word);
    };

    return (publish, argument) => {
      const { session, payload } = publish;
      const parts = argumentForm.exec(argument);
      if (!parts) throw unknownTopic;
      admission.message(session.device);
      try {
        const asked = { rid: parts[1]!, chunk: Number(parts[2]), size: sizeOf(payload, packetBytesMax) };
        const download = downloadOf(downloadsOf, session, asked);
        run(publish, async () => {
          try {
            await serve(session, download, asked);
          } catch (error) {
            // No package is assigned, or the assigned one was deleted: the next request checks again.
            if (error instanceof Fault && error.status !== 400) download.file = undefined;
            sendWord(session, error);
            throw error;
          }
        });
      } catch (error) {
        sendWord(session, error);
        throw error;
      }
    };
  };

  return {
    prefixes: { 'v2/fw/request/': operationOf('FIRMWARE'), 'v2/sw/request/': operationOf('SOFTWARE') },
    // Clients subscribe the short form without the chunk, too, and mean the chunks.
    answers: ['fw', 'sw'].flatMap((kind) => [
      `v2/${kind}/response/+/chunk/+`,
      `v2/${kind}/response/+`,
      `v2/${kind}/error`,
    ]),
  };
}

const busy = unavailable('ota_busy', 'Too many files are being sent at the moment; send the request again.');

const argumentForm = /^(-?\d{1,19})\/chunk\/(\d{1,10})$/;

const unknownTopic = new Fault(
  'unknown_topic',
  'Files are asked for on v2/fw/request/{rid}/chunk/{n} (software: v2/sw/…), rid and n whole numbers.',
);

function sizeOf(payload: Buffer, sizeMax: number): number | undefined {
  if (payload.length === 0) return undefined;
  const text = payload.toString('latin1', 0, Math.min(payload.length, 64)).trim();
  if (!/^\d+$/.test(text)) throw badRequest('ota_size', 'The payload must be the size of a chunk in digits, or empty.');
  if (payload.length > 64 || Number(text) > sizeMax) throw tooLargeFor(`than ${sizeMax} bytes`);
  return Number(text);
}

function downloadOf(table: WeakMap<Session, Map<string, Download>>, session: Session, asked: Asked): Download {
  let downloads = table.get(session);
  if (!downloads) table.set(session, (downloads = new Map()));
  let download = downloads.get(asked.rid);
  if (download) {
    // The last entry of the map is the download used last.
    downloads.delete(asked.rid);
  } else {
    download = { file: undefined, size: 0, hasFailed: false };
    if (downloads.size >= limits.otaDownloadsPerSessionMax) downloads.delete(downloads.keys().next().value!);
  }
  downloads.set(asked.rid, download);
  if (asked.size !== undefined) download.size = asked.size;
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
