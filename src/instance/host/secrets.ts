/**
 * The generated passwords of an instance, of its embedded stores and of the first administrator. The first start makes
 * them and keeps them in the data directory with mode 0600.
 */
import { randomBytes } from 'node:crypto';
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { messageOf, StartError } from '../../base/errors.ts';
import type { DataDirectory } from './data-directory.ts';
import { secretsFile } from './data-files.ts';

export interface Secrets {
  clickhousePassword: string;
  postgresPassword: string;
  adminPassword: string;
}

/** Returns the secrets; `fresh` when this call made them. A given admin password is not stored. */
export function secretsIn(data: DataDirectory): { secrets: Secrets; fresh: boolean } {
  const kept = keptSecrets(join(data.path, secretsFile));
  if (kept) return { secrets: kept, fresh: false };
  const secrets: Secrets = {
    clickhousePassword: randomBytes(24).toString('base64url'),
    postgresPassword: randomBytes(24).toString('base64url'),
    adminPassword: randomBytes(12).toString('base64url'),
  };
  // The stores are made with these passwords, which must be known after a power cut.
  data.keepPrivate(secretsFile, JSON.stringify(secrets, null, 2));
  return { secrets, fresh: true };
}

/** Returns undefined only when there is no file. The error of JSON.parse quotes the text, so it is not passed on. */
function keptSecrets(path: string): Secrets | undefined {
  let text: string;
  try {
    text = readFileSync(path, 'utf8');
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code === 'ENOENT') return undefined;
    throw new StartError(`${path} cannot be read: ${messageOf(error)}.`);
  }
  try {
    const secrets = JSON.parse(text) as Secrets;
    if (secrets.clickhousePassword && secrets.postgresPassword) return secrets;
  } catch {}
  throw new StartError(
    `${path} is damaged. It holds the passwords of the embedded stores: ` +
      `put the ${secretsFile} of a backup of this instance in its place.`,
  );
}
