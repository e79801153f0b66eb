/** The devices of PostgreSQL and the log of their changes, as the rooms that follow the log read them. */
import { randomBytes, randomUUID } from 'node:crypto';
import { unavailable } from '../../src/base/errors.ts';
import type { NewCredentials } from '../../src/device/model/credentials.ts';
import type { LoggedChange } from '../../src/device/sql/credential-log-store.ts';
import type { LoginRow } from '../../src/device/sql/look-up-store.ts';
import type { Queries } from '../../src/postgres/client.ts';

export const tenantId: string = randomUUID();
export const profileId: string = randomUUID();

export class FakeDeviceStore implements Queries {
  isAway = false;
  source = randomBytes(16);
  settled = 100;
  timeline = '00000001';
  /** The mark of each file of known devices. */
  marks = new Map<string, number>();
  rows = new Map<string, LoginRow>();
  log: (LoggedChange & { transaction: number })[] = [];
  profiles = [{ id: profileId, version: 1, transportType: 'DEFAULT', data: {} as object }];
  scans = 0;

  // biome-ignore lint/suspicious/noExplicitAny: rows of any statement
  async query(text: string, values: any[] = []): Promise<any[]> {
    if (this.isAway) throw unavailable('postgres_away', 'connect ECONNREFUSED');
    if (text.includes('pg_current_snapshot')) {
      const mark = this.marks.get(values[0]) ?? 0;
      return [{ snapshot: `${this.settled}:${this.settled}:`, timeline: this.timeline, mark }];
    }
    if (text.startsWith('delete from known_file')) return [];
    if (text.startsWith('insert into known_file')) {
      this.marks.set(values[0], 1);
      return [];
    }
    if (text.startsWith('update known_file')) {
      const mark = this.marks.get(values[0]) ?? 0;
      if (mark < values[1]) return [];
      this.marks.set(values[0], mark + 1);
      return [{ mark: mark + 1 }];
    }
    if (text.includes('from credential_changes')) {
      const [, , next, after, rowsMax] = values.map(Number);
      const rows = this.log.filter((row) => row.transaction > next! || (row.transaction === next && row.id > after!));
      return rows.slice(0, rowsMax);
    }
    if (text.includes('k.version = 1')) {
      const rows = (values[0] as string[]).flatMap((id) => this.rows.get(id) ?? []);
      const unchanged = rows.filter((row) => row.version === 1 && row.credentialsVersion === 1);
      return unchanged.map(({ credentialsId, id }) => ({ credentialsId, deviceId: id }));
    }
    if (text.includes('k.credentials_id = any')) {
      return (values[0] as string[]).flatMap((id) => this.rows.get(id) ?? []);
    }
    if (text.includes('k.id > $1')) {
      this.scans += 1;
      const keys = [...this.rows.keys()].sort().map((key, n) => ({ key: String(n + 1).padStart(8, '0'), id: key }));
      const page = keys.filter(({ key }) => key > values[0].slice(0, 8)).slice(0, values[1]);
      return page.map(({ key, id }) => ({ key, ...this.rows.get(id)! }));
    }
    if (text === 'select id, version from device_profile') return this.profiles;
    if (text.includes('transport_type as "transportType"')) return this.profiles;
    throw new Error(`unexpected: ${text}`);
  }

  save({ credentialsId, type, value }: NewCredentials, number: number, more: Partial<LoginRow> = {}): void {
    const row: LoginRow = {
      ...{ number, id: randomUUID(), tenantId, customerId: null, profileId, name: `device ${number}`, version: 1 },
      ...{ credentialsVersion: 1, credentialsId, type, value, isGateway: false, transportType: 'DEFAULT' },
      profileVersion: 1,
      ...more,
    };
    this.rows.set(credentialsId, row);
    this.#changed(credentialsId, row);
  }

  remove(credentialsId: string): void {
    const row = this.rows.get(credentialsId)!;
    this.rows.delete(credentialsId);
    this.#changed(credentialsId, row);
  }

  /** Returns what brings the store back to this moment; its transactions count on, as after a restore of rows. */
  keep(): () => void {
    const [rows, marks, log] = [new Map(this.rows), new Map(this.marks), [...this.log]];
    return () => {
      Object.assign(this, { rows, marks, log });
    };
  }

  #changed(credentialsId: string, { id, number }: LoginRow): void {
    this.settled += 1;
    const place = { id: this.log.length + 1, transaction: this.settled - 1 };
    this.log.push({ ...place, credentialsId, deviceId: id, deviceNumber: number, deleted: false });
  }
}
