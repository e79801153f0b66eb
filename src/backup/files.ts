/**
 * Writes the files of a backup, with mode 0600 and synced, and computes their checksums for the manifest. All writes
 * together keep to a pace, so that the disk stays free for the journal of the running instance.
 */
import { createHash, type Hash } from 'node:crypto';
import type { Dirent } from 'node:fs';
import { copyFile, type FileHandle, mkdir, open, readdir } from 'node:fs/promises';
import { dirname, join } from 'node:path';
import { StartError } from '../base/errors.ts';
import { systemScheduler } from '../base/scheduler.ts';
import type { BackupFile } from './manifest.ts';

const chunkBytes = 1024 * 1024;
/** A large sync delays the syncs of the journal on the same disk; many small ones do not. */
const syncBytes = 4 * 1024 * 1024;

export class BackupFiles {
  readonly dir: string;
  readonly written: BackupFile[] = [];
  bytes = 0;
  readonly #pace: Pace;
  readonly #creations = new Set<Promise<FileHandle>>();
  readonly #open = new Set<FileHandle>();
  readonly #stopped = new AbortController();

  constructor(dir: string, bytesPerSecondMax: number) {
    this.dir = dir;
    this.#pace = new Pace(bytesPerSecondMax, this.#stopped.signal);
  }

  /** Makes every later write throw the reason. When the promise resolves, no file is open or will be made. */
  async stop(reason: unknown): Promise<void> {
    this.#stopped.abort(reason);
    await Promise.allSettled(this.#creations);
    // A close waits for the write that runs.
    await Promise.allSettled([...this.#open].map((file) => file.close()));
  }

  /** Copies the first `bytes` of a file, or all that it has when it is opened. Throws for a shorter file. */
  async copy(from: string, path: string, bytes?: number): Promise<void> {
    const source = await open(from, 'r');
    try {
      const length = bytes ?? (await source.stat()).size;
      const target = await this.create(path);
      try {
        const buffer = Buffer.allocUnsafe(Math.min(chunkBytes, Math.max(1, length)));
        for (let at = 0; at < length; ) {
          const { bytesRead } = await source.read(buffer, 0, Math.min(buffer.length, length - at), at);
          if (bytesRead === 0) throw new StartError(`${from} ended after ${at} of ${length} bytes.`);
          await target.write(buffer.subarray(0, bytesRead));
          at += bytesRead;
        }
        await target.end();
      } catch (error) {
        await target.abandon();
        throw error;
      }
    } finally {
      await source.close();
    }
  }

  async writeWhole(path: string, content: Uint8Array | string): Promise<void> {
    const target = await this.create(path);
    await target.write(Buffer.from(content));
    await target.end();
  }

  async create(path: string): Promise<BackupWriter> {
    const { signal } = this.#stopped;
    signal.throwIfAborted();
    const creation = makeFile(join(this.dir, path)).then((made) => {
      this.#open.add(made);
      return made;
    });
    this.#creations.add(creation);
    const file = await creation.finally(() => this.#creations.delete(creation));
    if (signal.aborted) await file.close();
    signal.throwIfAborted();
    const closed = () => this.#open.delete(file);
    return new BackupWriter(file, this.#pace, closed, (bytes, sha256) => {
      this.written.push({ path, bytes, sha256 });
      this.bytes += bytes;
    });
  }

  /** Forgets the files of an attempt that is repeated. */
  forget(prefix: string): void {
    const kept = this.written.filter(({ path }) => !path.startsWith(prefix));
    this.written.splice(0, this.written.length, ...kept);
    this.bytes = kept.reduce((sum, { bytes }) => sum + bytes, 0);
  }
}

async function makeFile(path: string): Promise<FileHandle> {
  await mkdir(dirname(path), { recursive: true, mode: 0o700 });
  return await open(path, 'wx', 0o600);
}

class BackupWriter {
  readonly #file: FileHandle;
  readonly #pace: Pace;
  readonly #closed: () => void;
  readonly #ended: (bytes: number, sha256: string) => void;
  readonly #hash: Hash = createHash('sha256');
  #bytes = 0;
  #unsynced = 0;

  constructor(file: FileHandle, pace: Pace, closed: () => void, ended: (bytes: number, sha256: string) => void) {
    this.#file = file;
    this.#pace = pace;
    this.#closed = closed;
    this.#ended = ended;
  }

  async write(chunk: Buffer): Promise<void> {
    await this.#pace.spend(chunk.length);
    this.#hash.update(chunk);
    for (let at = 0; at < chunk.length; ) {
      const { bytesWritten } = await this.#file.write(chunk, at, chunk.length - at);
      at += bytesWritten;
    }
    this.#bytes += chunk.length;
    this.#unsynced += chunk.length;
    if (this.#unsynced < syncBytes) return;
    this.#unsynced = 0;
    await this.#file.datasync();
  }

  /** Ends the file, which is durable when the promise resolves. */
  async end(): Promise<void> {
    try {
      await this.#file.sync();
    } finally {
      await this.#file.close();
      this.#closed();
    }
    this.#ended(this.#bytes, this.#hash.digest('hex'));
  }

  async abandon(): Promise<void> {
    await this.#file.close().catch(() => {});
    this.#closed();
  }
}

/** Spreads bytes over time. Time in which the caller writes nothing allows no more bytes later. */
class Pace {
  readonly #bytesPerMs: number;
  readonly #signal: AbortSignal;
  #freeAtMs = 0;

  constructor(bytesPerSecondMax: number, signal: AbortSignal) {
    this.#bytesPerMs = bytesPerSecondMax / 1000;
    this.#signal = signal;
  }

  /** Throws the reason when the backup is stopped. */
  async spend(bytes: number): Promise<void> {
    const now = performance.now();
    const startMs = Math.max(now, this.#freeAtMs);
    this.#freeAtMs = startMs + bytes / this.#bytesPerMs;
    this.#signal.throwIfAborted();
    if (startMs <= now + 1) return;
    await systemScheduler.sleep(startMs - now, this.#signal);
    this.#signal.throwIfAborted();
  }
}

/** Returns the paths of the files below `dir`, relative to `dir`; none for a missing directory. */
export async function filesBelow(dir: string): Promise<string[]> {
  const paths: string[] = [];
  for (const entry of await entriesOf(dir)) {
    if (!entry.isDirectory()) paths.push(entry.name);
    else for (const path of await filesBelow(join(dir, entry.name))) paths.push(`${entry.name}/${path}`);
  }
  return paths.sort();
}

/** Copies the files of a backup whose path begins with `prefix` to below `target`, durable when it resolves. */
export async function copyBack(
  dir: string,
  files: readonly BackupFile[],
  prefix: string,
  target: string,
): Promise<void> {
  for (const { path } of files) {
    if (!path.startsWith(prefix)) continue;
    const to = join(target, path.slice(prefix.length));
    await mkdir(dirname(to), { recursive: true, mode: 0o700 });
    await copyFile(join(dir, path), to);
    await syncPath(to);
  }
}

/** Makes the names below `dir` durable. */
export async function syncDirectories(dir: string): Promise<void> {
  for (const entry of await entriesOf(dir)) if (entry.isDirectory()) await syncDirectories(join(dir, entry.name));
  await syncPath(dir);
}

/** Makes the content of a file, or the names in a directory, durable. */
export async function syncPath(path: string): Promise<void> {
  const handle = await open(path, 'r');
  await handle.sync().finally(() => handle.close());
}

async function entriesOf(dir: string): Promise<Dirent[]> {
  try {
    return await readdir(dir, { withFileTypes: true });
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code === 'ENOENT') return [];
    throw error;
  }
}
