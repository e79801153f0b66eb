/**
 * `manifest.json` of a backup: its content, with the SHA-256 of every file. It is written last, so a directory without
 * a valid manifest is not a backup. A restore reads it first and checks every file.
 */
import { createHash } from 'node:crypto';
import { createReadStream, existsSync } from 'node:fs';
import { open, readFile, rename } from 'node:fs/promises';
import { join } from 'node:path';
import { messageOf, StartError } from '../base/errors.ts';
import type { PostgresDump } from '../postgres/dump.ts';

export interface BackupFile {
  /** Path inside the backup, with slashes. */
  path: string;
  bytes: number;
  sha256: string;
}

export interface FrozenTable {
  name: string;
  create: string;
  /** False for a view or a distributed table, which has no rows. */
  stored: boolean;
  rows: number;
  parts: number;
}

export interface Manifest {
  format: 1;
  /** Version of the Millrace that made the backup. */
  version: string;
  began: string;
  ended: string;
  /** Absent for an external store: its own tools save it. */
  clickhouse?: { database: string; tables: FrozenTable[] };
  postgres?: PostgresDump;
  journals: string[];
  files: BackupFile[];
}

export const manifestName = 'manifest.json';
const checksBytesMax = 1024 * 1024;

export async function writeManifest(dir: string, manifest: Manifest): Promise<void> {
  const path = join(dir, manifestName);
  const text = JSON.stringify(manifest);
  const file = await open(`${path}.new`, 'wx', 0o600);
  try {
    await file.writeFile(`${JSON.stringify({ sha256: sha256(text) })}\n${text}\n`);
    await file.sync();
  } finally {
    await file.close();
  }
  await rename(`${path}.new`, path);
  const directory = await open(dir, 'r');
  await directory.sync().finally(() => directory.close());
}

export async function readManifest(dir: string): Promise<Manifest> {
  let whole: string;
  try {
    whole = await readFile(join(dir, manifestName), 'utf8');
  } catch (error) {
    if (!existsSync(dir)) throw new StartError(`${dir} is not a complete backup: there is no such directory.`);
    throw new StartError(
      (error as NodeJS.ErrnoException).code === 'ENOENT'
        ? `${dir} is not a complete backup: it has no ${manifestName}, which a backup writes last.`
        : `The backup ${dir} cannot be read: ${messageOf(error)}.`,
    );
  }
  const [head = '', text = ''] = whole.split('\n');
  const damaged = new StartError(`The backup ${dir} is damaged: ${manifestName} does not match its checksum.`);
  let manifest: Manifest;
  try {
    if ((JSON.parse(head) as { sha256: string }).sha256 !== sha256(text)) throw damaged;
    manifest = JSON.parse(text) as Manifest;
  } catch {
    throw damaged;
  }
  if (manifest.format !== 1) {
    throw new StartError(`The backup ${dir} was made by Millrace ${manifest.version}: restore it with that version.`);
  }
  return manifest;
}

/** Throws at the first file that differs from the manifest. */
export async function checkFiles(dir: string, { files }: Manifest, progress: (bytes: number) => void): Promise<void> {
  for (const { path, bytes, sha256: expected } of files) {
    const refuse = (why: string) => new StartError(`The backup ${dir} is damaged: ${path} ${why}.`);
    const hash = createHash('sha256');
    let length = 0;
    try {
      for await (const chunk of createReadStream(join(dir, path), { highWaterMark: checksBytesMax })) {
        hash.update(chunk as Buffer);
        length += (chunk as Buffer).length;
        progress((chunk as Buffer).length);
      }
    } catch (error) {
      throw refuse(`cannot be read (${messageOf(error)})`);
    }
    if (length !== bytes) throw refuse(`has ${length} bytes instead of ${bytes}`);
    if (hash.digest('hex') !== expected) throw refuse('does not match its checksum');
  }
}

function sha256(text: string): string {
  return createHash('sha256').update(text).digest('hex');
}
