/**
 * Receives request bodies. A statement is gathered in memory. Rows are written to a file that the engine reads: in
 * shared memory while there is enough, so that rows are not written to the disk twice. Statements and rows have a cap.
 */
import { createHash } from 'node:crypto';
import {
  accessSync,
  closeSync,
  constants,
  lstatSync,
  mkdirSync,
  openSync,
  readFileSync,
  rmSync,
  statfsSync,
  writeSync,
} from 'node:fs';
import type { IncomingMessage } from 'node:http';
import { dirname, join, resolve } from 'node:path';
import type { Readable } from 'node:stream';
import { createGunzip } from 'node:zlib';
import { messageOf } from '../../base/errors.ts';
import { Exception } from './exception.ts';

/**
 * Directories of rows that wait for the engine. Their names follow the data directory, so a successor clears them after
 * a crash.
 */
export class BodyFiles {
  /** The second directory, if any, is for rows that the first one has no room for. */
  readonly #dirs: readonly string[];
  readonly #bytesMax: number;
  #sequence = 0;

  constructor(dataDir: string, bytesMax: number, sharedMemory = '/dev/shm') {
    this.#bytesMax = bytesMax;
    this.#dirs = chooseDirs(dataDir, bytesMax, sharedMemory);
    this.close();
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
    return new BodyFile(
      this.#dirs.map((dir) => join(dir, String(this.#sequence))),
      this.#bytesMax,
    );
  }

  close(): void {
    for (const dir of this.#dirs) rmSync(dir, { recursive: true, force: true });
  }
}

export class BodyFile {
  bytes = 0;
  readonly #bytesMax: number;
  /** The path of the file, and those where it continues when there is no room. */
  readonly #paths: string[];
  #descriptor: number;

  constructor(paths: string[], bytesMax: number) {
    this.#paths = paths;
    this.#bytesMax = bytesMax;
    try {
      this.#descriptor = openInDirectory(this.path);
    } catch (error) {
      if (!isNoSpace(error) || paths.length === 1) throw error;
      this.#paths.shift();
      this.#descriptor = openInDirectory(this.path);
    }
  }

  get path(): string {
    return this.#paths[0]!;
  }

  append(chunk: Uint8Array): void {
    this.bytes += chunk.length;
    if (this.bytes > this.#bytesMax) throw tooLarge(this.#bytesMax);
    try {
      this.#write(chunk);
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

  #write(chunk: Uint8Array): void {
    for (let written = 0; written < chunk.length; ) {
      try {
        written += writeSync(this.#descriptor, chunk, written);
      } catch (error) {
        if (!isNoSpace(error) || this.#paths.length === 1) throw error;
        this.#move();
      }
    }
  }

  /** Continues the file at its next path. Another program may fill shared memory, which says nothing about the disk. */
  #move(): void {
    const next = openInDirectory(this.#paths[1]!);
    try {
      const begun = readFileSync(this.path);
      for (let written = 0; written < begun.length; ) written += writeSync(next, begun, written);
    } catch (error) {
      closeSync(next);
      rmSync(this.#paths[1]!, { force: true });
      throw error;
    }
    this.remove();
    this.#paths.shift();
    this.#descriptor = next;
  }
}

/**
 * Makes the directory when there is none: systemd removes what a user has in shared memory when the user signs out
 * (RemoveIPC). Another user could make it first, and then change the rows.
 */
function openInDirectory(path: string): number {
  const dir = dirname(path);
  mkdirSync(dir, { recursive: true, mode: 0o700 });
  if (lstatSync(dir).uid !== process.geteuid!()) throw new Error(`${dir} belongs to another user`);
  return openSync(path, 'wx', 0o600);
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

function chooseDirs(dataDir: string, bytesMax: number, sharedMemory: string): string[] {
  const besideData = join(dataDir, 'request-bodies');
  try {
    accessSync(sharedMemory, constants.W_OK);
    const { bavail, bsize } = statfsSync(sharedMemory);
    const name = createHash('sha256').update(resolve(dataDir)).digest('hex').slice(0, 16);
    if (bavail * bsize >= 2 * bytesMax) return [join(sharedMemory, `millrace-${name}`), besideData];
  } catch {
    // Without shared memory the rows are beside the data.
  }
  return [besideData];
}

function isNoSpace(error: unknown): boolean {
  return (error as NodeJS.ErrnoException).code === 'ENOSPC';
}

function tooLarge(bytesMax: number): Exception {
  return new Exception(229, 'QUERY_IS_TOO_LARGE', `The request body is larger than ${bytesMax} bytes.`);
}

function unreadable(error: unknown): Exception {
  return new Exception(210, 'NETWORK_ERROR', `Cannot read the request body: ${messageOf(error)}.`);
}
