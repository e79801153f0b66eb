/**
 * Reads the id of this installation, which all hosts that use its stores share. The first host makes the id and keeps
 * it in PostgreSQL. At a start without PostgreSQL the id is read from the file of known devices, which was made from
 * the same database. `primary.ts` passes it to the workers, whose bus has it in the names of its channels.
 */
import { randomUUID } from 'node:crypto';
import { readKnownHeader } from '../../device/known/known-devices-file.ts';
import type { Postgres, Queries } from '../../postgres/client.ts';
import { findOrInsertSetting, findSetting } from '../../postgres/stored-settings.ts';

const setting = 'installation.id';

export class Installation {
  readonly #postgres: Postgres;
  readonly #onOther: () => void;
  #id: string;
  #isInUse = false;

  /** `onOther`: the database turned out to be of another installation than the one that the workers were given. */
  constructor(postgres: Postgres, dataDir: string, onOther: () => void) {
    this.#postgres = postgres;
    this.#onOther = onOther;
    this.#id = readKnownHeader(dataDir)?.source.toString('hex') ?? '';
  }

  /** 32 hexadecimal digits for the workers, or '' when neither the database nor a file has the id yet. */
  get id(): string {
    this.#isInUse = true;
    return this.#id;
  }

  /** Reads the id when PostgreSQL has its tables, and makes an id when there is none. */
  async read(): Promise<void> {
    const stored =
      (await findSetting(this.#postgres, setting)) ??
      (await findOrInsertSetting(this.#postgres, setting, randomUUID()));
    const id = stored.replaceAll('-', '');
    const isOther = this.#isInUse && id !== this.#id;
    this.#id = id;
    if (isOther) this.#onOther();
  }
}

/** Returns the id of the installation; undefined before the first host has made it. */
export async function findInstallation(queries: Queries): Promise<string | undefined> {
  return (await findSetting(queries, setting))?.replaceAll('-', '');
}
