/**
 * The interface between the journal and the file system, with the real implementation. test/crash/sim-disk.ts has a
 * simulated disk that loses, tears and refuses writes.
 */
import * as fs from 'node:fs';
import { mkdir, open, readdir, rename, rm, rmdir, statfs } from 'node:fs/promises';
import { dirname } from 'node:path';

/**
 * `read`: an existing file. `write`: created when missing, kept when not. `log`: the same, and a write is durable
 * (O_DSYNC) when it returns: one trip through the thread pool instead of two, 5 800 commits/s against 4 650 at 64 kB.
 */
export type OpenMode = 'read' | 'write' | 'log';

export interface DiskFile {
  /** Fills `buffer` from `position`; fewer bytes only at the end of the file. */
  read(buffer: Buffer, position: number): Promise<number>;
  /** Writes all parts one after another from `position`, or throws. */
  write(parts: readonly Uint8Array[], position: number): Promise<void>;
  sync(): Promise<void>;
  size(): Promise<number>;
  truncate(bytes: number): Promise<void>;
  close(): Promise<void>;
}

export interface Disk {
  open(path: string, mode: OpenMode): Promise<DiskFile>;
  /** Names in a directory, sorted; empty when there is none. */
  list(dir: string): Promise<string[]>;
  rename(from: string, to: string): Promise<void>;
  /** Removes a file; no error when it is gone already. */
  remove(path: string): Promise<void>;
  makeDirectory(dir: string): Promise<void>;
  /** Removes an empty directory. */
  removeDirectory(dir: string): Promise<void>;
  /** Makes names (creates, renames, removes) of a directory durable. */
  syncDirectory(dir: string): Promise<void>;
  /** Returns the bytes that an ordinary user may still write. */
  freeBytes(dir: string): Promise<number>;
}

const unreadableStepBytes = 4096;

const openFlags: Record<OpenMode, number> = {
  read: fs.constants.O_RDONLY,
  write: fs.constants.O_RDWR | fs.constants.O_CREAT,
  log: fs.constants.O_RDWR | fs.constants.O_CREAT | fs.constants.O_DSYNC,
};

export const realDisk: Disk = {
  open: (path, mode) =>
    new Promise((resolve, reject) => {
      fs.open(path, openFlags[mode], 0o600, (error, descriptor) =>
        error ? reject(error) : resolve(new RealFile(descriptor)),
      );
    }),
  async list(dir) {
    try {
      return (await readdir(dir)).sort();
    } catch (error) {
      if (errorCode(error) === 'ENOENT') return [];
      throw error;
    }
  },
  rename,
  remove: (path) => rm(path, { force: true }),
  async makeDirectory(dir) {
    const first = await mkdir(dir, { recursive: true, mode: 0o700 });
    if (first !== undefined) await realDisk.syncDirectory(dirname(first));
  },
  removeDirectory: rmdir,
  async syncDirectory(dir) {
    const handle = await open(dir, 'r');
    try {
      await handle.sync();
    } finally {
      await handle.close();
    }
  },
  async freeBytes(dir) {
    const { bavail, bsize } = await statfs(dir);
    return bavail * bsize;
  },
};

/** Callbacks instead of FileHandle: about 10 % less time for each commit. */
class RealFile implements DiskFile {
  readonly #descriptor: number;

  constructor(descriptor: number) {
    this.#descriptor = descriptor;
  }

  read(buffer: Buffer, position: number): Promise<number> {
    return new Promise((resolve, reject) => {
      const readFrom = (done: number): void => {
        fs.read(this.#descriptor, buffer, done, buffer.length - done, position + done, (error, bytes) => {
          if (error) reject(error);
          else if (bytes === 0 || done + bytes === buffer.length) resolve(done + bytes);
          else readFrom(done + bytes);
        });
      };
      if (buffer.length === 0) resolve(0);
      else readFrom(0);
    });
  }

  write(parts: readonly Uint8Array[], position: number): Promise<void> {
    let bytes = 0;
    for (const part of parts) bytes += part.length;
    return new Promise((resolve, reject) => {
      fs.writev(this.#descriptor, parts as Uint8Array[], position, (error, written) => {
        if (error) reject(error);
        else if (written === bytes) resolve();
        else if (written === 0) reject(noSpace());
        // A short write is legal (a nearly full disk, a signal): a second call writes the rest.
        else this.write(afterBytes(parts, written), position + written).then(resolve, reject);
      });
    });
  }

  sync(): Promise<void> {
    return this.#settle((done) => fs.fdatasync(this.#descriptor, done));
  }

  size(): Promise<number> {
    return new Promise((resolve, reject) => {
      fs.fstat(this.#descriptor, (error, stats) => (error ? reject(error) : resolve(stats.size)));
    });
  }

  truncate(bytes: number): Promise<void> {
    return this.#settle((done) => fs.ftruncate(this.#descriptor, bytes, done));
  }

  close(): Promise<void> {
    return this.#settle((done) => fs.close(this.#descriptor, done));
  }

  #settle(start: (done: (error: Error | null) => void) => void): Promise<void> {
    return new Promise((resolve, reject) => start((error) => (error ? reject(error) : resolve())));
  }
}

function afterBytes(parts: readonly Uint8Array[], bytes: number): Uint8Array[] {
  const rest: Uint8Array[] = [];
  let skip = bytes;
  for (const part of parts) {
    if (skip < part.length) rest.push(part.subarray(skip));
    skip = Math.max(0, skip - part.length);
  }
  return rest;
}

function noSpace(): Error {
  return Object.assign(new Error('ENOSPC: nothing could be written'), { code: 'ENOSPC' });
}

export function errorCode(error: unknown): string {
  return (error as { code?: string } | null)?.code ?? '';
}

export function isNoSpace(error: unknown): boolean {
  const code = errorCode(error);
  return code === 'ENOSPC' || code === 'EDQUOT';
}

/** Returns the content of a small file; undefined when there is no file. */
export function readWhole(disk: Disk, path: string): Promise<Buffer | undefined> {
  return readFrom(disk, path, async (file) => {
    const buffer = Buffer.alloc(await file.size());
    return buffer.subarray(0, await file.read(buffer, 0));
  });
}

/** Returns the bytes of a file; 0 when there is no file. */
export async function sizeOf(disk: Disk, path: string): Promise<number> {
  return (await readFrom(disk, path, (file) => file.size())) ?? 0;
}

/** Like `readWhole`, but a block of 4 096 bytes that cannot be read (EIO) is zeros. */
export function readWholeAround(disk: Disk, path: string): Promise<Buffer | undefined> {
  return readFrom(disk, path, async (file) => {
    const buffer = Buffer.alloc(await file.size());
    await readAround(file, buffer, 0);
    return buffer;
  });
}

/** Calls `read` with an open file; returns undefined when there is no file. */
async function readFrom<Result>(
  disk: Disk,
  path: string,
  read: (file: DiskFile) => Promise<Result>,
): Promise<Result | undefined> {
  let file: DiskFile;
  try {
    file = await disk.open(path, 'read');
  } catch (error) {
    if (errorCode(error) === 'ENOENT') return undefined;
    throw error;
  }
  try {
    return await read(file);
  } finally {
    await file.close();
  }
}

/** Fills `buffer` from `position`, block by block: bytes that cannot be read (EIO) or lie after the end are zeros. */
export async function readAround(file: DiskFile, buffer: Buffer, position: number): Promise<void> {
  for (let at = 0; at < buffer.length; at += unreadableStepBytes) {
    const piece = buffer.subarray(at, at + unreadableStepBytes);
    try {
      piece.fill(0, await file.read(piece, position + at));
    } catch (error) {
      if (errorCode(error) !== 'EIO') throw error;
      piece.fill(0);
    }
  }
}

/** Replaces a file as a whole: a crash leaves the old one or the new one. Durable when it returns. */
export async function replaceWhole(disk: Disk, path: string, parts: readonly Uint8Array[]): Promise<void> {
  const temporary = `${path}.tmp`;
  const file = await disk.open(temporary, 'write');
  try {
    await file.truncate(0);
    await file.write(parts, 0);
    await file.sync();
  } finally {
    await file.close();
  }
  await disk.rename(temporary, path);
  await disk.syncDirectory(dirname(path));
}
