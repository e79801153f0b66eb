/**
 * Receives request bodies. A statement is gathered in memory. Rows are written to a file that the engine reads: in
 * shared memory when there is enough, so that rows are not written to the disk twice. Statements and rows have a cap.
 */
import { createHash } from 'node:crypto';
import { accessSync, closeSync, constants, mkdirSync, openSync, rmSync, statfsSync, writeSync } from 'node:fs';
import type { IncomingMessage } from 'node:http';
import { join, resolve } from 'node:path';
import type { Readable } from 'node:stream';
import { createGunzip } from 'node:zlib';
import { messageOf } from '../../base/errors.ts';
import { Exception } from './exception.ts';

/**
 * Directory of rows that wait for the engine. Its name follows the data directory, so a successor clears it after a
 * crash.
 */
export class BodyFiles {
  readonly #dir: string;
  readonly #bytesMax: number;
  #sequence = 0;

  constructor(dataDir: string, bytesMax: number) {
    this.#bytesMax = bytesMax;
    this.#dir = chooseDir(dataDir, bytesMax);
    rmSync(this.#dir, { recursive: true, force: true });
    this.#makeDir();
  }

  async receive(request: IncomingMessage, start: Uint8Array = new Uint8Array(0)): Promise<BodyFile> {
    const file = this.create();
    try {
      file.append(start);
      for await (const chunk of decoded(request)) file.append(chunk as Buffer);
    } catch (error) {
      file.remove();
      throw error instanceof Exception ? error : unreadable(error);
    }
    file.end();
    return file;
  }

  create(): BodyFile {
    this.#sequence += 1;
    const path = join(this.#dir, String(this.#sequence));
    try {
      return new BodyFile(path, this.#bytesMax);
    } catch (error) {
      // systemd removes what a user has in shared memory when the user signs out (RemoveIPC).
      if ((error as NodeJS.ErrnoException).code !== 'ENOENT') throw error;
      this.#makeDir();
      return new BodyFile(path, this.#bytesMax);
    }
  }

  close(): void {
    rmSync(this.#dir, { recursive: true, force: true });
  }

  #makeDir(): void {
    mkdirSync(this.#dir, { recursive: true, mode: 0o700 });
  }
}

export class BodyFile {
  readonly path: string;
  bytes = 0;
  readonly #bytesMax: number;
  #descriptor: number;

  constructor(path: string, bytesMax: number) {
    this.path = path;
    this.#bytesMax = bytesMax;
    this.#descriptor = openSync(path, 'wx', 0o600);
  }

  append(chunk: Uint8Array): void {
    this.bytes += chunk.length;
    if (this.bytes > this.#bytesMax) throw tooLarge(this.#bytesMax);
    try {
      for (let written = 0; written < chunk.length; ) written += writeSync(this.#descriptor, chunk, written);
    } catch (error) {
      throw new Exception(243, 'NOT_ENOUGH_SPACE', `Cannot keep the request body: ${messageOf(error)}.`);
    }
  }

  end(): void {
    if (this.#descriptor < 0) return;
    closeSync(this.#descriptor);
    this.#descriptor = -1;
  }

  remove(): void {
    this.end();
    rmSync(this.path, { force: true });
  }
}

export async function readStatementBody(request: IncomingMessage, bytesMax: number): Promise<Buffer> {
  const chunks: Buffer[] = [];
  let bytes = 0;
  try {
    for await (const chunk of decoded(request)) {
      bytes += (chunk as Buffer).length;
      if (bytes > bytesMax) throw tooLarge(bytesMax);
      chunks.push(chunk as Buffer);
    }
  } catch (error) {
    throw error instanceof Exception ? error : unreadable(error);
  }
  return chunks.length === 1 ? chunks[0]! : Buffer.concat(chunks);
}

function decoded(request: IncomingMessage): Readable {
  const encoding = request.headers['content-encoding'] ?? 'identity';
  if (encoding === 'identity' || encoding === '') return request;
  if (encoding !== 'gzip') {
    throw new Exception(48, 'NOT_IMPLEMENTED', `Unknown Content-Encoding '${encoding}': use gzip or none.`);
  }
  const gunzip = createGunzip();
  request.once('error', (error) => gunzip.destroy(error));
  request.once('aborted', () => gunzip.destroy(new Error('the client left')));
  return request.pipe(gunzip);
}

function chooseDir(dataDir: string, bytesMax: number): string {
  const shared = '/dev/shm';
  try {
    accessSync(shared, constants.W_OK);
    const { bavail, bsize } = statfsSync(shared);
    const name = createHash('sha256').update(resolve(dataDir)).digest('hex').slice(0, 16);
    if (bavail * bsize >= 2 * bytesMax) return join(shared, `millrace-${name}`);
  } catch {
    // Without shared memory the rows are beside the data.
  }
  return join(dataDir, 'request-bodies');
}

function tooLarge(bytesMax: number): Exception {
  return new Exception(229, 'QUERY_IS_TOO_LARGE', `The request body is larger than ${bytesMax} bytes.`);
}

function unreadable(error: unknown): Exception {
  return new Exception(210, 'NETWORK_ERROR', `Cannot read the request body: ${messageOf(error)}.`);
}
