/**
 * Keeps rows and bytes that could not be stored, below `<journal>/quarantine`: refused rows as files of rows
 * (`row-batch.ts`), and damaged ranges of a segment as pairs `<name>.data` and `<name>.json`. Earlier versions wrote
 * such a pair for each row; these entries are read as well. At the cap `add` refuses, because accepted rows are never
 * dropped silently. Entries are removed by `removeQuarantined` (any process) and by `expire`.
 */
import { crc32 } from 'node:zlib';
import { type Clock, systemClock } from '../base/clock.ts';
import { type Disk, readWholeAround, realDisk, replaceWhole, sizeOf } from './disk.ts';
import { batchSuffix, readBatch, writeBatch } from './row-batch.ts';
import { crcOfParts } from './segment.ts';

interface QuarantineNote {
  /** `rows`: refused by the store, can be shipped again unchanged. `gap`: damaged bytes, for an operator. */
  kind: 'rows' | 'gap';
  reason: string;
  rows: number;
  /** Order number in decimal; `0` when it is unknown. */
  order: string;
  bytes: number;
  crc: number;
  at: string;
  /** The place of the bytes: segment and offsets. */
  source?: string;
}

export interface QuarantineEntry extends QuarantineNote {
  dir: string;
  name: string;
}

/** Rows of one frame that the store refuses. */
interface RefusedRows {
  reason: string;
  payload: Uint8Array;
  rows: number;
  order: bigint;
  source?: string;
}

/** A note inside a file of rows: the number keeps an entry's name when entries before it are removed. */
type NumberedNote = QuarantineNote & { id: number };

export class QuarantineFull extends Error {
  constructor(bytesMax: number) {
    super(`The quarantine holds ${bytesMax} bytes already: list and replay or remove its entries.`);
    this.name = 'QuarantineFull';
  }
}

interface FileShare {
  entries: number;
  rows: number;
  /** Order numbers of its entries. */
  orders: BigUint64Array;
  /** Bytes on the disk, with notes. */
  bytes: number;
  /** Clock time of its newest entry. */
  at: number;
}

export class Quarantine {
  readonly #disk: Disk;
  readonly #dir: string;
  readonly #bytesMax: number;
  readonly #clock: Clock;
  /** Entries by the name of their file of rows or of their note. */
  #files = new Map<string, FileShare>();
  #bytes = 0;
  #entries = 0;
  #count = 0;

  private constructor(disk: Disk, dir: string, bytesMax: number, clock: Clock) {
    this.#disk = disk;
    this.#dir = dir;
    this.#bytesMax = bytesMax;
    this.#clock = clock;
  }

  /** Entries expire by their times, so the clock is that of the installation, and not that of the host. */
  static async open(disk: Disk, journalDir: string, bytesMax: number, clock: Clock = systemClock): Promise<Quarantine> {
    const self = new Quarantine(disk, quarantineDir(journalDir), bytesMax, clock);
    await self.refresh();
    return self;
  }

  get entries(): number {
    return this.#entries;
  }

  get bytes(): number {
    return this.#bytes;
  }

  /** Reads the directory again: an operator may have removed entries from another process. */
  async refresh(): Promise<void> {
    const files = new Map<string, FileShare>();
    for (const file of await this.#disk.list(this.#dir)) {
      if (!file.endsWith('.json') && !file.endsWith(batchSuffix)) continue;
      const known = this.#files.get(file);
      // A file of rows may have been replaced by a smaller one; a note is never changed.
      const same = known && (file.endsWith('.json') || known.bytes === (await sizeOf(this.#disk, this.#path(file))));
      files.set(file, same ? known : shareOf(await entriesOf(this.#disk, this.#dir, file)));
      if (!same && file.endsWith(batchSuffix)) files.get(file)!.bytes = await sizeOf(this.#disk, this.#path(file));
    }
    this.#files = files;
    this.#recount();
  }

  /** Rows that the store refuses, in one file. Durable when it returns; throws QuarantineFull at the cap. */
  async add(items: readonly RefusedRows[]): Promise<void> {
    const bytes = items.reduce((sum, { payload }) => sum + payload.length, 0);
    if (this.#bytes + bytes > this.#bytesMax) await this.refresh();
    if (this.#bytes + bytes > this.#bytesMax) throw new QuarantineFull(this.#bytesMax);
    await this.#disk.makeDirectory(this.#dir);
    let file: string;
    do file = `rows-${items[0]!.order}-${(this.#count += 1)}${batchSuffix}`;
    while (this.#files.has(file));
    const at = new Date(this.#clock.now());
    const records = items.map((item, id) => ({ note: { ...noteOf('rows', item, item.payload, at), id }, ...item }));
    const written = await writeBatch<NumberedNote>(this.#disk, this.#path(file), records);
    const rows = items.reduce((sum, item) => sum + item.rows, 0);
    const orders = BigUint64Array.from(items, ({ order }) => order);
    this.#files.set(file, { entries: items.length, rows, orders, bytes: written, at: at.getTime() });
    this.#recount();
  }

  /**
   * Adds a damaged range, or a frame that is no block. `place`: the segment or stream of the range, or the name of the
   * frame. The same range found again after a restart is one entry. At the cap only the note is kept.
   */
  async addGap(
    place: string,
    from: number,
    bytes: Uint8Array,
    damage: 'damaged' | 'no block' = 'damaged',
  ): Promise<'added' | 'known'> {
    const name = `gap-${place}-${from}`;
    if (this.#files.has(`${name}.json`)) return 'known';
    const fits = this.#bytes + bytes.length <= this.#bytesMax;
    const reason = fits ? damage : `${damage}; bytes not copied, quarantine is full`;
    const source = `${place} ${from}..${from + bytes.length}`;
    const payload = fits ? bytes : noBytes;
    const at = new Date(this.#clock.now());
    const note = noteOf('gap', { reason, rows: 0, order: 0n, source }, payload, at);
    await this.#disk.makeDirectory(this.#dir);
    await replaceWhole(this.#disk, `${this.#dir}/${name}.data`, [payload]);
    // The note is written last: an entry with a note is complete.
    await replaceWhole(this.#disk, `${this.#dir}/${name}.json`, [encodedNote(note)]);
    this.#files.set(`${name}.json`, { entries: 1, rows: 0, orders: noOrders, bytes: payload.length, at: at.getTime() });
    this.#recount();
    return 'added';
  }

  /** Returns the refused rows with this order number that are here now: another process may have removed some. */
  async rowsOf(order: bigint): Promise<Pick<RefusedRows, 'reason' | 'payload'>[]> {
    const files = [...this.#files].filter(([, { orders }]) => orders.includes(order)).map(([file]) => file);
    const found: Pick<RefusedRows, 'reason' | 'payload'>[] = [];
    for (const file of files) {
      for (const { note, payload } of await this.#recordsOf(file)) {
        if (note?.kind === 'rows' && note.order === order.toString()) found.push({ reason: note.reason, payload });
      }
    }
    return found;
  }

  /** Reads the file once: a file of rows may have many records. */
  async #recordsOf(file: string): Promise<{ note: QuarantineNote | undefined; payload: Buffer }[]> {
    if (file.endsWith(batchSuffix)) return (await readBatch<NumberedNote>(this.#disk, this.#path(file))) ?? [];
    const [note] = await entriesOf(this.#disk, this.#dir, file);
    const payload = note && (await payloadOf(note, this.#disk));
    return payload ? [{ note, payload }] : [];
  }

  /** Removes entries that are older than `before`; returns how many entries and rows these were. */
  async expire(before: number): Promise<{ entries: number; rows: number }> {
    const expired = { entries: 0, rows: 0 };
    for (const [file, { entries, rows, at }] of [...this.#files]) {
      // An entry without a readable time does not expire.
      if (Number.isNaN(at) || at >= before) continue;
      await this.#disk.remove(this.#path(file));
      if (file.endsWith('.json')) await this.#disk.remove(this.#path(`${file.slice(0, -'.json'.length)}.data`));
      this.#files.delete(file);
      expired.entries += entries;
      expired.rows += rows;
    }
    this.#recount();
    return expired;
  }

  #recount(): void {
    this.#bytes = 0;
    this.#entries = 0;
    for (const { entries, bytes } of this.#files.values()) {
      this.#entries += entries;
      this.#bytes += bytes;
    }
    this.#count = Math.max(this.#count, this.#files.size);
  }

  #path(file: string): string {
    return `${this.#dir}/${file}`;
  }
}

const noOrders = new BigUint64Array();
const noBytes = new Uint8Array();

export function quarantineDir(journalDir: string): string {
  return `${journalDir}/quarantine`;
}

function noteOf(
  kind: QuarantineNote['kind'],
  item: Omit<RefusedRows, 'payload'>,
  payload: Uint8Array,
  at: Date,
): QuarantineNote {
  return {
    kind,
    reason: item.reason.slice(0, 1000),
    rows: item.rows,
    order: item.order.toString(),
    bytes: payload.length,
    crc: crcOfParts([payload]),
    at: at.toISOString(),
    ...(item.source !== undefined && { source: item.source }),
  };
}

/** Returns the content of the note of a segment that cannot be read. Its file is beside the note. */
export function lostSegmentNote(segment: string, reason: string, at: Date): Buffer {
  return encodedNote(noteOf('gap', { reason, rows: 0, order: 0n, source: segment }, noBytes, at));
}

function encodedNote(note: QuarantineNote): Buffer {
  return Buffer.from(`${JSON.stringify(note)}\n`);
}

function shareOf(entries: QuarantineEntry[]): FileShare {
  // The note of a damaged entry may say anything.
  const orders = BigUint64Array.from(entries, ({ order }) => (/^\d{1,19}$/.test(order) ? BigInt(order) : 0n));
  const share = { entries: entries.length, rows: 0, orders, bytes: 0, at: Number.NaN };
  for (const { rows, bytes, at } of entries) {
    share.rows += rows;
    share.bytes += bytes;
    const time = Date.parse(at);
    if (!(share.at > time)) share.at = time;
  }
  return share;
}

/** Lists the entries of a journal directory by name. A note that cannot be read is listed as damaged. */
export async function listQuarantine(journalDir: string, disk: Disk = realDisk): Promise<QuarantineEntry[]> {
  const dir = quarantineDir(journalDir);
  const entries: QuarantineEntry[] = [];
  for (const file of await disk.list(dir)) entries.push(...(await entriesOf(disk, dir, file)));
  return entries;
}

async function entriesOf(disk: Disk, dir: string, file: string): Promise<QuarantineEntry[]> {
  if (file.endsWith(batchSuffix)) {
    const records = (await readBatch<NumberedNote>(disk, `${dir}/${file}`)) ?? [];
    const batch = file.slice(0, -batchSuffix.length);
    return records.map(({ note, payload }, i) =>
      note
        ? { ...note, dir, name: `${batch}.${note.id}` }
        : { ...damagedNote(payload.length), dir, name: `${batch}.damaged-${i}` },
    );
  }
  if (!file.endsWith('.json')) return [];
  const bytes = await readWholeAround(disk, `${dir}/${file}`);
  return bytes ? [{ ...parseNote(bytes), dir, name: file.slice(0, -'.json'.length) }] : [];
}

function damagedNote(bytes: number): QuarantineNote {
  return { kind: 'gap', reason: 'the note is damaged', rows: 0, order: '0', bytes, crc: 0, at: '' };
}

function parseNote(bytes: Buffer): QuarantineNote {
  try {
    return JSON.parse(bytes.toString('utf8')) as QuarantineNote;
  } catch {
    return damagedNote(0);
  }
}

/** Returns the bytes of an entry; throws when they do not match the note. */
export async function readQuarantined(entry: QuarantineEntry, disk: Disk = realDisk): Promise<Buffer> {
  const bytes = await payloadOf(entry, disk);
  if (!bytes || bytes.length !== entry.bytes || crc32(bytes) !== entry.crc) {
    throw new Error(`The bytes of ${entry.dir}/${entry.name} do not match their note.`);
  }
  return bytes;
}

async function payloadOf(entry: QuarantineEntry, disk: Disk): Promise<Buffer | undefined> {
  const file = batchOf(entry.name);
  if (file === undefined) return readWholeAround(disk, `${entry.dir}/${entry.name}.data`);
  const records = await readBatch<NumberedNote>(disk, `${entry.dir}/${file}`);
  return records?.find((record, i) => isEntry(entry, record.note, i))?.payload;
}

/** Called after a confirmed replay. Entries of one file are removed together. */
export async function removeQuarantined(entries: readonly QuarantineEntry[], disk: Disk = realDisk): Promise<void> {
  const byFile = new Map<string, QuarantineEntry[]>();
  for (const entry of entries) {
    const path = `${entry.dir}/${batchOf(entry.name) ?? `${entry.name}.json`}`;
    byFile.set(path, [...(byFile.get(path) ?? []), entry]);
  }
  for (const [path, leaving] of byFile) {
    if (path.endsWith(batchSuffix)) await removeFromBatch(path, leaving, disk);
    else await removePair(leaving[0]!, disk);
  }
}

async function removeFromBatch(path: string, leaving: readonly QuarantineEntry[], disk: Disk): Promise<void> {
  const records = (await readBatch<NumberedNote>(disk, path)) ?? [];
  const staying = records.filter(({ note }, i) => !leaving.some((entry) => isEntry(entry, note, i)));
  if (staying.length > 0) {
    // A damaged record gets a note of its own when other records of its file are removed.
    const notes = staying.map(({ note, payload }, i) => ({
      note: note ?? { ...damagedNote(payload.length), crc: crc32(payload), id: records.length + i },
      payload,
    }));
    await writeBatch(disk, path, notes);
    return;
  }
  await disk.remove(path);
  await disk.syncDirectory(leaving[0]!.dir);
}

/** Removes the note first: bytes without a note are not an entry. */
async function removePair({ dir, name }: QuarantineEntry, disk: Disk): Promise<void> {
  await disk.remove(`${dir}/${name}.json`);
  await disk.syncDirectory(dir);
  await disk.remove(`${dir}/${name}.data`);
}

/** Returns the file of rows with this entry; undefined for an entry that is a pair of files. */
function batchOf(name: string): string | undefined {
  const match = /^(rows-\d+-\d+)\.(?:damaged-)?\d+$/.exec(name);
  return match ? `${match[1]}${batchSuffix}` : undefined;
}

function isEntry(entry: QuarantineEntry, note: NumberedNote | undefined, place: number): boolean {
  return entry.name.endsWith(note ? `.${note.id}` : `.damaged-${place}`);
}
