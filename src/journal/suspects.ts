/**
 * Suspects: rows that the store refused alone while other rows were accepted. A suspect is durable below
 * `<journal>/suspects` until the row is stored or proven bad, so the position of the lane may move past the row. The
 * process that owns the journal owns its suspects. Deletes count a suspect as not shipped (`orderMin`). At the cap
 * `add` refuses.
 */
import { type Disk, isNoSpace, realDisk } from './disk.ts';
import { batchSuffix, readBatch, writeBatch } from './row-batch.ts';

interface RowsUnderSuspicion {
  payload: Uint8Array;
  rows: number;
  /** Smallest order number of its rows. */
  order: bigint;
  reason: string;
}

export interface Suspect {
  readonly rows: number;
  readonly bytes: number;
  readonly order: bigint;
  readonly reason: string;
  /** The file of the suspect. */
  readonly file: string;
  readonly id: number;
}

interface Note {
  rows: number;
  order: string;
  reason: string;
  at: string;
  id: number;
}

export class SuspectsFull extends Error {
  constructor(bytesMax: number, entriesMax: number) {
    super(`${bytesMax} bytes or ${entriesMax} entries of rows wait already because the store refuses them.`);
    this.name = 'SuspectsFull';
  }
}

const entriesMax = 100_000;

export class Suspects {
  readonly #disk: Disk;
  readonly #dir: string;
  readonly #bytesMax: number;
  readonly #suspects = new Set<Suspect>();
  #bytes = 0;
  #rows = 0;
  #orderMin: bigint | undefined;
  #sequence = 0;

  private constructor(disk: Disk, dir: string, bytesMax: number) {
    this.#disk = disk;
    this.#dir = dir;
    this.#bytesMax = bytesMax;
  }

  /** `onDamage` is called with the bytes of an unreadable record; the record is dropped when the call returns. */
  static async open(
    disk: Disk,
    journalDir: string,
    bytesMax: number,
    onDamage: (name: string, bytes: Buffer) => Promise<void>,
  ): Promise<Suspects> {
    const self = new Suspects(disk, suspectsDir(journalDir), bytesMax);
    for (const file of await disk.list(self.#dir)) {
      if (file.endsWith(batchSuffix)) await self.#load(file, onDamage);
      else await disk.remove(`${self.#dir}/${file}`);
    }
    return self;
  }

  get entries(): number {
    return this.#suspects.size;
  }

  get rows(): number {
    return this.#rows;
  }

  get bytes(): number {
    return this.#bytes;
  }

  /** Smallest order number of all suspects; undefined when there are none. Rows with lower orders are not suspects. */
  get orderMin(): bigint | undefined {
    return this.#orderMin;
  }

  list(): Suspect[] {
    return [...this.#suspects];
  }

  /** Durable when it returns; throws SuspectsFull at the cap. */
  async add(items: readonly RowsUnderSuspicion[]): Promise<void> {
    const bytes = items.reduce((sum, { payload }) => sum + payload.length, 0);
    if (this.#bytes + bytes > this.#bytesMax || this.#suspects.size + items.length > entriesMax) {
      throw new SuspectsFull(this.#bytesMax, entriesMax);
    }
    await this.#disk.makeDirectory(this.#dir);
    this.#sequence += 1;
    const file = `${this.#sequence}${batchSuffix}`;
    const at = new Date().toISOString();
    const records = items.map(({ rows, order, reason, payload }, id) => ({
      note: { rows, order: order.toString(), reason: reason.slice(0, 1000), at, id } satisfies Note,
      payload,
    }));
    await writeBatch(this.#disk, `${this.#dir}/${file}`, records);
    for (const [id, { rows, order, reason, payload }] of items.entries()) {
      this.#suspects.add({ rows, bytes: payload.length, order, reason, file, id });
    }
    this.#recount();
  }

  /** Returns the payloads of suspects, in the same order; undefined for a damaged record. */
  async read(suspects: readonly Suspect[]): Promise<(Buffer | undefined)[]> {
    const files = new Map<string, Map<number, Buffer>>();
    for (const { file } of suspects) {
      if (files.has(file)) continue;
      const records = (await readBatch<Note>(this.#disk, `${this.#dir}/${file}`)) ?? [];
      files.set(file, new Map(records.flatMap(({ note, payload }) => (note ? [[note.id, payload] as const] : []))));
    }
    return suspects.map(({ file, id }) => files.get(file)!.get(id));
  }

  /**
   * Removes suspects that are stored or in quarantine. The removal is durable when `remove` returns, except from a file
   * with a damaged record: such a file stays until the next start keeps the rest of the record.
   */
  async settle(settled: readonly Suspect[]): Promise<void> {
    for (const file of new Set(settled.map((suspect) => suspect.file))) {
      const leaving = settled.filter((suspect) => suspect.file === file);
      const ids = new Set(leaving.map(({ id }) => id));
      const path = `${this.#dir}/${file}`;
      const records = (await readBatch<Note>(this.#disk, path)) ?? [];
      const staying = records.filter(({ note }) => note && !ids.has(note.id)) as { note: Note; payload: Buffer }[];
      const isWhole = records.every(({ note }) => note);
      if (isWhole && staying.length > 0) {
        await writeBatch(this.#disk, path, staying);
      } else if (isWhole) {
        await this.#disk.remove(path);
        await this.#disk.syncDirectory(this.#dir);
      }
      for (const suspect of leaving) this.#suspects.delete(suspect);
    }
    this.#recount();
  }

  async #load(file: string, onDamage: (name: string, bytes: Buffer) => Promise<void>): Promise<void> {
    this.#sequence = Math.max(this.#sequence, Number.parseInt(file, 10) || 0);
    const path = `${this.#dir}/${file}`;
    const records = (await readBatch<Note>(this.#disk, path)) ?? [];
    for (const [i, { note, payload }] of records.entries()) {
      if (note) {
        const { rows, order, reason, id } = note;
        this.#suspects.add({ rows, bytes: payload.length, order: BigInt(order), reason, file, id });
      } else {
        await onDamage(`suspects-${file}-${i}`, payload);
      }
    }
    const whole = records.filter(({ note }) => note) as { note: Note; payload: Buffer }[];
    if (whole.length === 0) await this.#disk.remove(path);
    else if (whole.length < records.length) await writeBatch(this.#disk, path, whole).catch(ignoreNoSpace);
    this.#recount();
  }

  #recount(): void {
    this.#bytes = 0;
    this.#rows = 0;
    this.#orderMin = undefined;
    for (const { bytes, rows, order } of this.#suspects) {
      this.#bytes += bytes;
      this.#rows += rows;
      if (this.#orderMin === undefined || order < this.#orderMin) this.#orderMin = order;
    }
  }
}

/** Lists the suspects of a journal directory, also while its worker runs. Changes nothing. */
export async function listSuspects(journalDir: string): Promise<{ rows: number }[]> {
  const dir = suspectsDir(journalDir);
  const suspects: { rows: number }[] = [];
  for (const file of await realDisk.list(dir)) {
    if (!file.endsWith(batchSuffix)) continue;
    for (const { note } of (await readBatch<Note>(realDisk, `${dir}/${file}`)) ?? []) if (note) suspects.push(note);
  }
  return suspects;
}

/** On a full disk the next start finds the damaged record again. */
function ignoreNoSpace(error: unknown): void {
  if (!isNoSpace(error)) throw error;
}

export function suspectsDir(journalDir: string): string {
  return `${journalDir}/suspects`;
}
