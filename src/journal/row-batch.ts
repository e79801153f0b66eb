/**
 * Files of rows that were set aside: the quarantine and the suspects. The rows of one call are one file, which becomes
 * durable as a whole, so a crash leaves all rows of the call or none. One process creates and names files; any process
 * may replace a file by a smaller one or remove it.
 *
 * "MRROWS1\n" · records: u32 bytes of the note · u32 bytes of the payload · u32 crc of both · note (JSON) · payload
 */
import { crc32 } from 'node:zlib';
import { type Disk, readWholeAround, replaceWhole } from './disk.ts';
import { crcOfParts } from './segment.ts';

interface BatchRecord<Note> {
  /** Undefined: the record is damaged. */
  note: Note | undefined;
  payload: Buffer;
}

export const batchSuffix = '.rows';
const magic = Buffer.from('MRROWS1\n');
const headBytes = 12;

export async function writeBatch<Note>(
  disk: Disk,
  path: string,
  records: readonly { note: Note; payload: Uint8Array }[],
): Promise<number> {
  const parts: Uint8Array[] = [magic];
  for (const { note, payload } of records) {
    const text = Buffer.from(JSON.stringify(note));
    const head = Buffer.alloc(headBytes);
    head.writeUInt32LE(text.length, 0);
    head.writeUInt32LE(payload.length, 4);
    head.writeUInt32LE(crcOfParts([text, payload]), 8);
    parts.push(head, text, payload);
  }
  await replaceWhole(disk, path, [Buffer.concat(parts)]);
  return parts.reduce((bytes, part) => bytes + part.length, 0);
}

/**
 * Returns every record of a file; undefined when there is no file. An unreadable sector damages its records. Bytes
 * after an unreadable length are one record.
 */
export async function readBatch<Note>(disk: Disk, path: string): Promise<BatchRecord<Note>[] | undefined> {
  const bytes = await readWholeAround(disk, path);
  if (!bytes) return undefined;
  const records: BatchRecord<Note>[] = [];
  if (!bytes.subarray(0, magic.length).equals(magic)) return [{ note: undefined, payload: bytes }];
  for (let at = magic.length; at < bytes.length; ) {
    const from = at + headBytes;
    const noteBytes = from <= bytes.length ? bytes.readUInt32LE(at) : 0;
    const end = noteBytes > 0 ? from + noteBytes + bytes.readUInt32LE(at + 4) : Number.POSITIVE_INFINITY;
    if (end > bytes.length) {
      records.push({ note: undefined, payload: bytes.subarray(at) });
      break;
    }
    const body = bytes.subarray(from, end);
    const note = crc32(body) === bytes.readUInt32LE(at + 8) ? parseNote<Note>(body.subarray(0, noteBytes)) : undefined;
    records.push({ note, payload: body.subarray(noteBytes) });
    at = end;
  }
  return records;
}

function parseNote<Note>(bytes: Buffer): Note | undefined {
  try {
    return JSON.parse(bytes.toString('utf8')) as Note;
  } catch {
    return undefined;
  }
}
