/**
 * GET /api/v1/{token}/firmware and /software: the file that is assigned to the device, whole or one chunk of it. Order
 * of checks: parameters, token, rate limit, whether the file is assigned to the device.
 */
import { badRequest } from '../base/errors.ts';
import { devicePlaceOwners } from '../base/places.ts';
import type { CachedDevice } from '../device/model/cached-device.ts';
import { chunkRange, readRange, type SlicedFile, wholeBytesMax } from '../ota/chunks.ts';
import type { Downloads } from '../ota/downloads.ts';
import { defaultContentType, type PackageType, type StoredPackage } from '../ota/package.ts';
import { attachmentHeaders } from '../uws/attachment.ts';
import type { Answer, Exchange } from '../uws/exchange.ts';
import type { HttpServer } from '../uws/server.ts';
import type { DeviceAuth } from './device-auth.ts';

interface FirmwareDoorDeps {
  server: HttpServer;
  deviceAuth: DeviceAuth;
  downloads: Downloads;
}

interface Asked {
  title: string;
  version: string;
  size: number;
  chunk: number;
}

export function firmwareDoor({ server, deviceAuth, downloads }: FirmwareDoorDeps): void {
  /** Answers nearly all chunks: every value is in memory, and no promise is made. */
  const answerNow = (exchange: Exchange, type: PackageType, token: string, asked: Asked): boolean => {
    const device = deviceAuth.known(token, exchange);
    const file = device && downloads.remembered(device, type, asked.title, asked.version);
    if (!file) return false;
    const range = chunkRange(file.dataSize, asked.size, asked.chunk);
    if (range.end - range.start > wholeBytesMax) return false;
    const body = downloads.pieces.peek(file.id, range);
    if (!body) return false;
    deviceAuth.admission.message(device);
    exchange.answer(fileAnswer(file, body, device));
    return true;
  };

  const answerLater = async (exchange: Exchange, type: PackageType, token: string, asked: Asked): Promise<void> => {
    try {
      const device = await deviceAuth.admit(token, exchange);
      const file = await downloads.find(device, type, asked.title, asked.version);
      const range = chunkRange(file.dataSize, asked.size, asked.chunk);
      exchange.answer(fileAnswer(file, await readRange(downloads.pieces, file, range), device));
    } catch (error) {
      deviceAuth.refuse(exchange, error, token);
    }
  };

  const receive = (type: PackageType, exchange: Exchange, token: string, query: string): void => {
    try {
      const asked = askedFor(query);
      if (!answerNow(exchange, type, token, asked)) void answerLater(exchange, type, token, asked);
    } catch (error) {
      deviceAuth.refuse(exchange, error, token);
    }
  };
  server.rawGet('/api/v1/:token/firmware', (exchange, token, query) => receive('FIRMWARE', exchange, token, query));
  server.rawGet('/api/v1/:token/software', (exchange, token, query) => receive('SOFTWARE', exchange, token, query));
}

function fileAnswer(file: StoredPackage, body: Buffer | SlicedFile, device: CachedDevice): Answer {
  const answer = {
    status: 200,
    contentType: file.contentType ?? defaultContentType,
    headers: attachmentHeaders(file.fileName),
  };
  if (Buffer.isBuffer(body)) return { ...answer, body };
  return { ...answer, body: { ...body, owners: devicePlaceOwners(device) } };
}

function askedFor(query: string): Asked {
  const members = new URLSearchParams(query);
  return {
    title: required(members, 'title'),
    version: required(members, 'version'),
    size: wholeNumber(members, 'size'),
    chunk: wholeNumber(members, 'chunk'),
  };
}

const int32Max = 2 ** 31 - 1;

function required(query: URLSearchParams, name: string): string {
  const value = query.get(name);
  if (!value) throw badRequest('parameter_missing', `Required request parameter '${name}' is not present`);
  return value;
}

/** Returns a whole number; absent is 0. */
function wholeNumber(query: URLSearchParams, name: string): number {
  const text = query.get(name) || '0';
  const value = Number(text);
  if (/^\d{1,10}$/.test(text) && value <= int32Max) return value;
  throw badRequest('parameter_integer', `Parameter '${name}' must be a whole number from 0 to ${int32Max}`);
}
