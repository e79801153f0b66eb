/**
 * A disk in memory that behaves as badly as a real one may. Writes become durable only with a sync (or a `log` handle).
 * `crash` makes a disk as it may be after a power failure: each unsynced 512-byte sector is kept, lost or, for a write
 * under way, torn; of the changes of names since the last directory sync, the first ones are kept and the others lost.
 * Deterministic by seed.
 */
import { type Sleep, systemScheduler } from '../../src/base/scheduler.ts';
import type { Disk, DiskFile, OpenMode } from '../../src/journal/disk.ts';
import type { Random } from '../harness/random.ts';

type Operation = 'open' | 'read' | 'write' | 'sync' | 'rename' | 'remove' | 'syncDirectory';

interface Inode {
  /** The bytes that certainly survive a crash. */
  durable: Buffer;
  /** The bytes that a reader sees. */
  live: Buffer;
  /** Sector numbers that differ and are not yet synced. */
  dirty: Set<number>;
  /**
   * After an I/O error later syncs through the same handle report success and store nothing, as kernels do that mark
   * failed pages clean. A file that is opened again for writing is honest.
   */
  lies: boolean;
}

/** An operation that fails or crashes; the range is that of a read or a write. */
interface Step {
  changes?: boolean;
  from?: number;
  to?: number;
}

const sectorBytes = 512;
const dead = new Promise<never>(() => {});

function diskError(code: string): Error {
  return Object.assign(new Error(`${code}: injected`), { code });
}

export class SimDisk implements Disk {
  #names = new Map<string, Inode>();
  /** Names at the last directory sync, and the changes since. */
  #durableNames = new Map<string, Inode>();
  #pendingNames: { path: string; inode: Inode | undefined }[][] = [];
  /** Operations that change something, so far. */
  operations = 0;
  /** The power fails before this operation: it and all later operations never end. */
  crashAt = Number.POSITIVE_INFINITY;
  capacityBytes = Number.MAX_SAFE_INTEGER;
  /** Makes the waits of slow operations. */
  sleep: Sleep = systemScheduler.sleep;
  /** Returns an error code to let an operation fail, or milliseconds to wait. */
  fault: (operation: Operation, path: string, from?: number, to?: number) => string | number | undefined = () =>
    undefined;

  get crashed(): boolean {
    return this.operations >= this.crashAt;
  }

  /**
   * Returns the disk after a power cut (a random part of the unsynced bytes exists) or after `kill -9` (all of them
   * exist).
   */
  crash(random: Random | undefined): SimDisk {
    const disk = new SimDisk();
    disk.capacityBytes = this.capacityBytes;
    const inodes = new Map<Inode, Inode>();
    const survivor = (inode: Inode): Inode => {
      let copy = inodes.get(inode);
      if (!copy) {
        const content = random ? survivingContent(inode, random) : Buffer.from(inode.live);
        copy = { durable: content, live: Buffer.from(content), dirty: new Set(), lies: false };
        inodes.set(inode, copy);
      }
      return copy;
    };
    let names = this.#names;
    if (random) {
      names = new Map(this.#durableNames);
      const kept = random.below(this.#pendingNames.length + 1);
      for (const change of this.#pendingNames.slice(0, kept)) applyNames(names, change);
    }
    for (const [path, inode] of names) {
      disk.#names.set(path, survivor(inode));
      disk.#durableNames.set(path, survivor(inode));
    }
    return disk;
  }

  paths(): string[] {
    return [...this.#names.keys()].sort();
  }

  /** Returns the present name of a file. */
  pathOf(inode: Inode): string {
    for (const [path, named] of this.#names) if (named === inode) return path;
    return '';
  }

  /** Returns the content of a file, which a test may damage. */
  content(path: string): Buffer {
    return this.#inode(path).live;
  }

  cut(path: string, bytes: number): void {
    const inode = this.#inode(path);
    inode.live = inode.durable = Buffer.from(inode.live.subarray(0, bytes));
  }

  async open(path: string, mode: OpenMode): Promise<DiskFile> {
    await this.step('open', path, { changes: mode !== 'read' });
    let inode = this.#names.get(path);
    if (!inode) {
      if (mode === 'read') throw diskError('ENOENT');
      inode = { durable: Buffer.alloc(0), live: Buffer.alloc(0), dirty: new Set(), lies: false };
      this.#change([{ path, inode }]);
    }
    if (mode !== 'read') inode.lies = false;
    return new SimFile(this, inode, mode);
  }

  async list(dir: string): Promise<string[]> {
    const names = new Set<string>();
    for (const path of this.#names.keys()) {
      if (path.startsWith(`${dir}/`)) names.add(path.slice(dir.length + 1).split('/')[0]!);
    }
    return [...names].sort();
  }

  async rename(from: string, to: string): Promise<void> {
    await this.step('rename', from);
    const inode = this.#inode(from);
    this.#change([
      { path: from, inode: undefined },
      { path: to, inode },
    ]);
  }

  async remove(path: string): Promise<void> {
    await this.step('remove', path);
    if (this.#names.has(path)) this.#change([{ path, inode: undefined }]);
  }

  async makeDirectory(): Promise<void> {}
  async removeDirectory(): Promise<void> {}

  async syncDirectory(dir: string): Promise<void> {
    await this.step('syncDirectory', dir);
    for (const change of this.#pendingNames) applyNames(this.#durableNames, change);
    this.#pendingNames = [];
  }

  async freeBytes(): Promise<number> {
    return this.capacityBytes - this.usedBytes();
  }

  usedBytes(): number {
    let bytes = 0;
    for (const inode of new Set(this.#names.values())) bytes += inode.live.length;
    return bytes;
  }

  /** Counts an operation; then waits, fails or never ends, as the test has ordered. */
  async step(operation: Operation, path: string, { changes = true, from, to }: Step = {}): Promise<void> {
    if (this.crashed) return dead;
    if (changes) this.operations += 1;
    if (this.crashed) return dead;
    const fault = this.fault(operation, path, from, to);
    if (typeof fault === 'string') throw diskError(fault);
    if (typeof fault === 'number') await this.sleep(fault);
  }

  #inode(path: string): Inode {
    const inode = this.#names.get(path);
    if (!inode) throw diskError('ENOENT');
    return inode;
  }

  #change(change: { path: string; inode: Inode | undefined }[]): void {
    applyNames(this.#names, change);
    this.#pendingNames.push(change);
  }
}

function applyNames(names: Map<string, Inode>, change: { path: string; inode: Inode | undefined }[]): void {
  for (const { path, inode } of change) {
    if (inode) names.set(path, inode);
    else names.delete(path);
  }
}

function survivingContent({ durable, live, dirty }: Inode, random: Random): Buffer {
  const length = random.next() < 0.5 ? live.length : durable.length;
  const content = Buffer.alloc(length);
  durable.copy(content);
  // Sometimes the whole write or nothing of it is kept; otherwise each sector is kept or lost separately.
  const all = random.next();
  for (const sector of dirty) {
    const from = sector * sectorBytes;
    if (from >= length) continue;
    const fate = all < 0.2 ? 1 : all < 0.3 ? 0 : random.next();
    if (fate < 0.5) continue;
    const to = Math.min(from + sectorBytes, live.length, length);
    // A torn sector: the first part new, the rest old or, rarely, noise.
    const torn = fate > 0.5 && fate < 0.55;
    live.copy(content, from, from, torn ? from + random.below(to - from) : to);
    // Adds noise only where the write changed bytes: a disk does not harm sectors that it overwrites with the same
    // bytes.
    if (torn && random.next() < 0.3) {
      for (let i = from; i < to; i += 1) if (live[i] !== (durable[i] ?? 0)) content[i] = random.below(256);
    }
  }
  return content;
}

class SimFile implements DiskFile {
  readonly #disk: SimDisk;
  readonly #inode: Inode;
  readonly #mode: OpenMode;

  constructor(disk: SimDisk, inode: Inode, mode: OpenMode) {
    this.#disk = disk;
    this.#inode = inode;
    this.#mode = mode;
  }

  async read(buffer: Buffer, position: number): Promise<number> {
    const range = { from: position, to: position + buffer.length };
    await this.#disk.step('read', this.#disk.pathOf(this.#inode), { changes: false, ...range });
    return this.#inode.live.copy(buffer, 0, position, Math.min(position + buffer.length, this.#inode.live.length));
  }

  async write(parts: readonly Uint8Array[], position: number): Promise<void> {
    const bytes = Buffer.concat(parts);
    // The power may fail while the write is under way: then some of its sectors are kept.
    const before = this.#disk.operations;
    const inode = this.#inode;
    const grows = Math.max(0, position + bytes.length - inode.live.length);
    if (grows > 0 && this.#disk.usedBytes() + grows > this.#disk.capacityBytes) throw diskError('ENOSPC');
    if (before + 1 >= this.#disk.crashAt && !this.#disk.crashed) this.#put(bytes, position);
    try {
      const range = { from: position, to: position + bytes.length };
      await this.#disk.step('write', this.#disk.pathOf(this.#inode), range);
    } catch (error) {
      if ((error as { code?: string }).code === 'EIO') inode.lies = true;
      // A failed write may have left anything in its range; readers see it until the pages are dropped.
      this.#put(bytes, position);
      throw error;
    }
    this.#put(bytes, position);
    if (this.#mode === 'log') this.#settle();
  }

  async sync(): Promise<void> {
    await this.#disk.step('sync', this.#disk.pathOf(this.#inode));
    this.#settle();
  }

  async size(): Promise<number> {
    return this.#inode.live.length;
  }

  async truncate(bytes: number): Promise<void> {
    await this.#disk.step('write', this.#disk.pathOf(this.#inode));
    this.#inode.live = Buffer.from(this.#inode.live.subarray(0, bytes));
    this.#inode.dirty.clear();
    this.#inode.durable = Buffer.from(this.#inode.live);
  }

  async close(): Promise<void> {}

  #put(bytes: Buffer, position: number): void {
    const inode = this.#inode;
    const end = position + bytes.length;
    if (end > inode.live.length) {
      const grown = Buffer.alloc(end);
      inode.live.copy(grown);
      inode.live = grown;
    }
    bytes.copy(inode.live, position);
    for (let at = position - (position % sectorBytes); at < end; at += sectorBytes) inode.dirty.add(at / sectorBytes);
  }

  #settle(): void {
    const inode = this.#inode;
    if (inode.lies) return;
    if (inode.durable.length !== inode.live.length) {
      inode.durable = Buffer.from(inode.live);
    } else {
      for (const sector of inode.dirty) {
        inode.live.copy(inode.durable, sector * sectorBytes, sector * sectorBytes, (sector + 1) * sectorBytes);
      }
    }
    inode.dirty.clear();
  }
}
