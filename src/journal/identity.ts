/**
 * What a journal directory keeps about itself. The writer id of its worker is part of every order number, so it must
 * never change: a torn or unreadable file is an error and never replaced by a second id. The id of the installation
 * names the database whose device numbers are in the rows.
 */
import { messageOf, StartError } from '../base/errors.ts';
import { type Disk, readWhole, realDisk, replaceWhole } from './disk.ts';

export const writerIdMax = 2 ** 14 - 1;

export const installationFile = 'installation';

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

/**
 * Notes the installation of a journal. Throws a StartError when rows of another installation wait in it: their device
 * numbers name other devices here. A directory of an earlier version has no note and takes the present one.
 */
export async function keepInstallation(
  { disk, dir, isEmpty }: { disk: Disk; dir: string; isEmpty: boolean },
  installation: string,
): Promise<void> {
  const known = await readInstallation(dir, disk);
  if (known === installation) return;
  if (known !== undefined && !isEmpty) {
    throw new StartError(
      `Rows of another installation wait in the journal ${dir}, whose device numbers name other devices here. ` +
        'Use the database (DATABASE_URL) of that installation until they are stored, or move the directory away.',
    );
  }
  await replaceWhole(disk, `${dir}/${installationFile}`, [Buffer.from(`${installation}\n`)]);
}

/** Returns undefined when the directory has no note. */
export async function readInstallation(dir: string, disk: Disk = realDisk): Promise<string | undefined> {
  return (await readWhole(disk, `${dir}/${installationFile}`))?.toString('latin1').trim();
}
