/**
 * The writer id that a journal directory keeps for its worker. The id is part of every order number, so it must never
 * change. A torn or unreadable file is an error and never replaced by a second id.
 */
import { messageOf, StartError } from '../base/errors.ts';
import { type Disk, readWhole, realDisk, replaceWhole } from './disk.ts';

export const writerIdMax = 2 ** 14 - 1;

/** Returns undefined only when there is no file. */
export async function readWriterId(dir: string, disk: Disk = realDisk): Promise<number | undefined> {
  const bytes = await readWhole(disk, `${dir}/writer`).catch((error: unknown) => {
    throw new StartError(`The file ${dir}/writer, the id of this journal, cannot be read: ${messageOf(error)}.`);
  });
  if (!bytes) return undefined;
  const text = bytes.toString('latin1').trim();
  const id = Number(text);
  if (!/^\d{1,5}$/.test(text) || id > writerIdMax) {
    throw new StartError(
      `The file ${dir}/writer must hold a number from 0 to ${writerIdMax}, it holds "${text.slice(0, 40)}". ` +
        'Write the number of this journal into it: the table journals of PostgreSQL has the number (writer) and the ' +
        'host of each journal; numbers of other journals are in their files of this name.',
    );
  }
  return id;
}

export async function storeWriterId(dir: string, id: number, disk: Disk = realDisk): Promise<void> {
  if (!Number.isInteger(id) || id < 0 || id > writerIdMax) {
    throw new StartError(`Writer id ${id} is out of range: it must be from 0 to ${writerIdMax}.`);
  }
  await disk.makeDirectory(dir);
  await replaceWhole(disk, `${dir}/writer`, [Buffer.from(`${id}\n`)]);
}
