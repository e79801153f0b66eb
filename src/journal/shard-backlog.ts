/**
 * Rows whose shard of ClickHouse does not take them, beside the lanes: the lanes continue with the rows of the other
 * shards. The rows of one unit are a file below `<journal>/shards`, durable before the position of the lane moves, and
 * removed after the shard has stored the rows. A crash in between costs a repeated insert. Deletes count these rows as
 * not shipped (`orderMin`). The name of a file has its numbers, so an opening reads no file:
 *
 *   <shard>-<sequence>-<version of the map of shards>-<smallest order>-<rows>-<bytes of its blocks>.rows
 */
import { type Disk, realDisk } from './disk.ts';
import { batchSuffix, readBatch, writeBatch } from './row-batch.ts';

export interface ShardRows {
  payloads: readonly Uint8Array[];
  rows: number;
  /** An order ≤ that of every row. */
  orderMin: bigint;
  /** A version of the map of shards ≤ that by which the rows were divided. */
  mapVersion: number;
}

interface ShardFile {
  readonly name: string;
  readonly shard: number;
  readonly sequence: number;
  readonly mapVersion: number;
  readonly orderMin: bigint;
  readonly rows: number;
  readonly bytes: number;
  /** True while its rows are being stored, or moved to another file. */
  isTaken: boolean;
}

/** The oldest rows of a shard, until `settle`. */
export interface ShardUnit extends ShardRows {
  readonly files: readonly ShardFile[];
}

/** A small unit joins the newest file below this size, so that a shard that is down for days leaves few files. */
const joinedBytesMax = 1024 * 1024;
const namePattern = /^(\d{1,3})-(\d{1,15})-(\d{1,15})-(\d{1,20})-(\d{1,15})-(\d{1,15})\.rows$/;
const noNote = {};

export class ShardBacklog {
  readonly #disk: Disk;
  readonly #dir: string;
  readonly #onDamage: (name: string, bytes: Buffer) => Promise<void>;
  /** The files of each shard, the oldest one first. */
  readonly #files = new Map<number, ShardFile[]>();
  readonly #amounts = new Map<number, { rows: number; bytes: number }>();
  #sequence = 0;
  #orderMin: bigint | undefined;
  #mapVersionMin: number | undefined;
  /** Called when a file was added. */
  onAdded: (shard: number) => void = () => {};

  private constructor(disk: Disk, dir: string, onDamage: (name: string, bytes: Buffer) => Promise<void>) {
    this.#disk = disk;
    this.#dir = dir;
    this.#onDamage = onDamage;
  }

  /** `onDamage` is called with the bytes of an unreadable record; the record is dropped when the call returns. */
  static async open(
    disk: Disk,
    journalDir: string,
    onDamage: (name: string, bytes: Buffer) => Promise<void>,
  ): Promise<ShardBacklog> {
    const self = new ShardBacklog(disk, shardsDir(journalDir), onDamage);
    for (const file of await listShardFiles(journalDir, disk)) self.#keep(file);
    // What a crash left of a file that was being written.
    for (const name of await disk.list(self.#dir))
      if (name.endsWith(`${batchSuffix}.tmp`)) await disk.remove(`${self.#dir}/${name}`);
    for (const files of self.#files.values()) files.sort((a, b) => a.sequence - b.sequence);
    self.#recount();
    return self;
  }

  get isEmpty(): boolean {
    return this.#files.size === 0;
  }

  /** Smallest order number of all rows here, or a lower one; undefined when there are none. */
  get orderMin(): bigint | undefined {
    return this.#orderMin;
  }

  get rows(): number {
    return sumOf([...this.#amounts.values()], ({ rows }) => rows);
  }

  get bytes(): number {
    return sumOf([...this.#amounts.values()], ({ bytes }) => bytes);
  }

  /** The earliest map of shards by which rows here were divided; undefined when there are none. */
  get mapVersionMin(): number | undefined {
    return this.#mapVersionMin;
  }

  /** The shards that have rows here. */
  shards(): number[] {
    return [...this.#files.keys()];
  }

  /** True when the shard has rows here: later rows follow them. */
  holds(shard: number): boolean {
    return this.#files.has(shard);
  }

  rowsOf(shard: number): number {
    return this.#amounts.get(shard)?.rows ?? 0;
  }

  bytesOf(shard: number): number {
    return this.#amounts.get(shard)?.bytes ?? 0;
  }

  /** Durable when it returns. Rejects with the error of the disk. */
  async add(shard: number, { payloads, rows, orderMin, mapVersion }: ShardRows): Promise<void> {
    await this.#disk.makeDirectory(this.#dir);
    const bytes = sumOf(payloads, ({ length }) => length);
    const records = payloads.map((payload) => ({ note: noNote, payload }));
    const own = { shard, mapVersion, orderMin, rows, bytes };
    const joined = this.#joinable(shard, bytes);
    if (joined === undefined) {
      await this.#write(own, records);
    } else {
      joined.isTaken = true;
      try {
        const earlier = (await readBatch<object>(this.#disk, this.#path(joined))) ?? [];
        const isWhole = earlier.every(({ note }) => note !== undefined);
        const all = earlier.map(({ payload }) => ({ note: noNote, payload })).concat(records as never);
        if (isWhole) {
          const sum = { rows: joined.rows + rows, bytes: joined.bytes + bytes };
          const least = joined.orderMin < orderMin ? joined.orderMin : orderMin;
          const version = Math.min(joined.mapVersion, mapVersion);
          await this.#write({ shard, mapVersion: version, orderMin: least, ...sum }, all);
          await this.#remove([joined]);
        } else {
          await this.#write(own, records);
        }
      } finally {
        joined.isTaken = false;
      }
    }
    this.onAdded(shard);
  }

  /** Returns the oldest rows of a shard that are not taken; undefined when there are none. */
  async next(shard: number, limits: { rowsMax: number; bytesMax: number }): Promise<ShardUnit | undefined> {
    const files: ShardFile[] = [];
    let [rows, bytes] = [0, 0];
    for (const file of this.#files.get(shard) ?? []) {
      if (file.isTaken) break;
      if (files.length > 0 && (rows + file.rows > limits.rowsMax || bytes + file.bytes > limits.bytesMax)) break;
      files.push(file);
      rows += file.rows;
      bytes += file.bytes;
    }
    if (files.length === 0) return undefined;
    for (const file of files) file.isTaken = true;
    try {
      const payloads: Buffer[] = [];
      for (const file of files) payloads.push(...(await this.#payloadsOf(file)));
      let { orderMin } = files[0]!;
      for (const file of files) if (file.orderMin < orderMin) orderMin = file.orderMin;
      const mapVersion = Math.min(...files.map((file) => file.mapVersion));
      return { files, payloads, rows, orderMin, mapVersion };
    } catch (error) {
      this.giveBack({ files });
      throw error;
    }
  }

  /** Called when the rows of the unit are stored. */
  async settle({ files }: Pick<ShardUnit, 'files'>): Promise<void> {
    await this.#remove(files);
  }

  /** Called when the rows of the unit were not stored: `next` returns them again. */
  giveBack({ files }: Pick<ShardUnit, 'files'>): void {
    for (const file of files) file.isTaken = false;
  }

  #joinable(shard: number, bytes: number): ShardFile | undefined {
    const newest = this.#files.get(shard)?.at(-1);
    return newest && !newest.isTaken && newest.bytes + bytes <= joinedBytesMax ? newest : undefined;
  }

  async #payloadsOf(file: ShardFile): Promise<Buffer[]> {
    const records = (await readBatch<object>(this.#disk, this.#path(file))) ?? [];
    for (const [i, { note, payload }] of records.entries())
      if (note === undefined) await this.#onDamage(`shards-${file.name}-${i}`, payload);
    return records.flatMap(({ note, payload }) => (note === undefined ? [] : [payload]));
  }

  async #write(
    numbers: Pick<ShardFile, 'shard' | 'mapVersion' | 'orderMin' | 'rows' | 'bytes'>,
    records: readonly { note: object; payload: Uint8Array }[],
  ): Promise<void> {
    this.#sequence += 1;
    const sequence = this.#sequence;
    const { shard, mapVersion, orderMin, rows, bytes } = numbers;
    const name = `${shard}-${sequence}-${mapVersion}-${orderMin}-${rows}-${bytes}${batchSuffix}`;
    // Listed before it is written: rows that are durable here must count as not shipped.
    const file: ShardFile = { name, sequence, ...numbers, isTaken: true };
    this.#keep(file);
    this.#recount();
    try {
      await writeBatch(this.#disk, this.#path(file), records);
      file.isTaken = false;
    } catch (error) {
      this.#forget(file);
      // What is left takes room of a full disk, and the caller repeats the call under another name.
      for (const path of [`${this.#path(file)}.tmp`, this.#path(file)]) await this.#disk.remove(path).catch(() => {});
      throw error;
    }
  }

  async #remove(files: readonly ShardFile[]): Promise<void> {
    for (const file of files) await this.#disk.remove(this.#path(file));
    await this.#disk.syncDirectory(this.#dir);
    for (const file of files) this.#forget(file);
  }

  #keep(file: ShardFile): void {
    this.#sequence = Math.max(this.#sequence, file.sequence);
    const files = this.#files.get(file.shard);
    if (files) files.push(file);
    else this.#files.set(file.shard, [file]);
  }

  #forget(file: ShardFile): void {
    const left = (this.#files.get(file.shard) ?? []).filter((other) => other !== file);
    if (left.length > 0) this.#files.set(file.shard, left);
    else this.#files.delete(file.shard);
    this.#recount();
  }

  #recount(): void {
    this.#orderMin = undefined;
    this.#mapVersionMin = undefined;
    this.#amounts.clear();
    for (const [shard, files] of this.#files) {
      this.#amounts.set(shard, { rows: sumOf(files, ({ rows }) => rows), bytes: sumOf(files, ({ bytes }) => bytes) });
      for (const { orderMin, mapVersion } of files) {
        if (this.#orderMin === undefined || orderMin < this.#orderMin) this.#orderMin = orderMin;
        if (this.#mapVersionMin === undefined || mapVersion < this.#mapVersionMin) this.#mapVersionMin = mapVersion;
      }
    }
  }

  #path({ name }: ShardFile): string {
    return `${this.#dir}/${name}`;
  }
}

/** Lists the files of rows that wait for a shard, also while the worker of the journal runs. Changes nothing. */
export async function listShardFiles(journalDir: string, disk: Disk = realDisk): Promise<ShardFile[]> {
  const files: ShardFile[] = [];
  for (const name of await disk.list(shardsDir(journalDir))) {
    const found = namePattern.exec(name);
    if (!found) continue;
    const [shard, sequence, mapVersion, , rows, bytes] = found.slice(1).map(Number);
    const numbers = { shard: shard!, sequence: sequence!, mapVersion: mapVersion!, rows: rows!, bytes: bytes! };
    files.push({ name, ...numbers, orderMin: BigInt(found[4]!), isTaken: false });
  }
  return files;
}

function shardsDir(journalDir: string): string {
  return `${journalDir}/shards`;
}

function sumOf<Item>(items: readonly Item[], amountOf: (item: Item) => number): number {
  return items.reduce((sum, item) => sum + amountOf(item), 0);
}
