/**
 * What could not be kept in its way: damaged stretches of a segment, and rows that the store refuses. Each entry is a
 * file pair in `<dir>/quarantine`, `<name>.data` and `<name>.json`; the note is written last, so an entry with a note
 * is whole. Nothing here is ever removed but by `removeQuarantined`. At the cap `add` refuses, and shipping of that
 * unit stops with an alarm: accepted rows are not dropped in silence.
 */
import { crc32 } from 'node:zlib';
import { type Disk, readWhole, realDisk, replaceWhole } from './disk.ts';
import { crcOfParts } from './segment.ts';

export interface QuarantineNote {
  /** `rows`: refused by the store, can be shipped again as they are. `gap`: damaged bytes, for a human. */
  kind: 'rows' | 'gap';
  reason: string;
  rows: number;
  /** Order number in decimal; `0` when it is unknown. */
  order: string;
  bytes: number;
  crc: number;
  at: string;
  /** Where it stood: segment and offsets. */
  source?: string;
}

export interface QuarantineEntry extends QuarantineNote {
  dir: string;
  name: string;
}

export class QuarantineFull extends Error {
  constructor(bytesMax: number) {
    super(`The quarantine holds ${bytesMax} bytes already: list and replay or remove its entries.`);
    this.name = 'QuarantineFull';
  }
}

export class Quarantine {
  readonly #disk: Disk;
  readonly #dir: string;
  readonly #bytesMax: number;
  readonly #names = new Set<string>();
  #bytes = 0;
  #count = 0;

  private constructor(disk: Disk, dir: string, bytesMax: number) {
    this.#disk = disk;
    this.#dir = dir;
    this.#bytesMax = bytesMax;
  }

  static async open(disk: Disk, journalDir: string, bytesMax: number): Promise<Quarantine> {
    const self = new Quarantine(disk, quarantineDir(journalDir), bytesMax);
    for (const entry of await listQuarantine(journalDir, disk)) {
      self.#names.add(entry.name);
      self.#bytes += entry.bytes;
    }
    self.#count = self.#names.size;
    return self;
  }

  get entries(): number {
    return this.#names.size;
  }

  get bytes(): number {
    return this.#bytes;
  }

  /** Rows that the store refuses. Durable when it returns; throws QuarantineFull at the cap. */
  async add(item: {
    reason: string;
    payload: Uint8Array;
    rows: number;
    order: bigint;
    source?: string;
  }): Promise<void> {
    if (this.#bytes + item.payload.length > this.#bytesMax) throw new QuarantineFull(this.#bytesMax);
    let name: string;
    do name = `rows-${item.order}-${(this.#count += 1)}`;
    while (this.#names.has(name));
    await this.#store(name, 'rows', item, item.payload);
  }

  /** A damaged stretch. The same one again (found anew after a restart) is one entry; at the cap only the note stays. */
  async addGap(segment: string, from: number, bytes: Uint8Array): Promise<'added' | 'known'> {
    const name = `gap-${segment}-${from}`;
    if (this.#names.has(name)) return 'known';
    const fits = this.#bytes + bytes.length <= this.#bytesMax;
    const reason = fits ? 'damaged' : 'damaged; bytes not copied, quarantine is full';
    const source = `${segment} ${from}..${from + bytes.length}`;
    await this.#store(name, 'gap', { reason, rows: 0, order: 0n, source }, fits ? bytes : Buffer.alloc(0));
    return 'added';
  }

  async #store(
    name: string,
    kind: QuarantineNote['kind'],
    item: { reason: string; rows: number; order: bigint; source?: string },
    payload: Uint8Array,
  ): Promise<void> {
    const note: QuarantineNote = {
      kind,
      reason: item.reason.slice(0, 1000),
      rows: item.rows,
      order: item.order.toString(),
      bytes: payload.length,
      crc: crcOfParts([payload]),
      at: new Date().toISOString(),
      ...(item.source !== undefined && { source: item.source }),
    };
    await this.#disk.makeDirectory(this.#dir);
    await replaceWhole(this.#disk, `${this.#dir}/${name}.data`, [payload]);
    await replaceWhole(this.#disk, `${this.#dir}/${name}.json`, [Buffer.from(`${JSON.stringify(note)}\n`)]);
    this.#names.add(name);
    this.#bytes += payload.length;
  }
}

export function quarantineDir(journalDir: string): string {
  return `${journalDir}/quarantine`;
}

/** The entries of a journal directory, oldest name first. A note that cannot be read is listed as damaged. */
export async function listQuarantine(journalDir: string, disk: Disk = realDisk): Promise<QuarantineEntry[]> {
  const dir = quarantineDir(journalDir);
  const entries: QuarantineEntry[] = [];
  for (const file of await disk.list(dir)) {
    if (!file.endsWith('.json')) continue;
    const bytes = await readWhole(disk, `${dir}/${file}`);
    entries.push({ ...parseNote(bytes), dir, name: file.slice(0, -'.json'.length) });
  }
  return entries;
}

function parseNote(bytes: Buffer | undefined): QuarantineNote {
  try {
    return JSON.parse(bytes?.toString('utf8') ?? '') as QuarantineNote;
  } catch {
    return { kind: 'gap', reason: 'the note is damaged', rows: 0, order: '0', bytes: 0, crc: 0, at: '' };
  }
}

/** The bytes of an entry; throws when they are no longer what the note says. */
export async function readQuarantined(entry: QuarantineEntry, disk: Disk = realDisk): Promise<Buffer> {
  const bytes = await readWhole(disk, `${entry.dir}/${entry.name}.data`);
  if (!bytes || bytes.length !== entry.bytes || crc32(bytes) !== entry.crc) {
    throw new Error(`${entry.dir}/${entry.name}.data does not match its note`);
  }
  return bytes;
}

/** After a replay was confirmed. The note goes first: an entry without one is no entry. */
export async function removeQuarantined(entry: QuarantineEntry, disk: Disk = realDisk): Promise<void> {
  await disk.remove(`${entry.dir}/${entry.name}.json`);
  await disk.syncDirectory(entry.dir);
  await disk.remove(`${entry.dir}/${entry.name}.data`);
}
