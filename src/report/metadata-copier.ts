/**
 * Updates ClickHouse's copy of device data: reads the present state of the devices named by the outbox, writes this
 * state, and only then deletes the rows of the outbox. A crash repeats both steps; the newest version number counts.
 * One host copies at a time.
 */
import { serverScope } from '../attributes/scope.ts';
import { activityKeys } from '../attributes/store.ts';
import type { Clock } from '../base/clock.ts';
import { messageOf } from '../base/errors.ts';
import { limits } from '../base/limits.ts';
import type { Log } from '../base/log.ts';
import type { Metrics } from '../base/metrics/metrics.ts';
import { systemScheduler } from '../base/scheduler.ts';
import { type ClickHouse, isUnanswered, isWithoutTables } from '../clickhouse/client.ts';
import { anyDevice, insertRows, markAttributesDeleted, tenantsOfDevices } from '../clickhouse/metadata-statements.ts';
import type { Postgres, Queries } from '../postgres/client.ts';
import { isAway } from '../postgres/postgres-error.ts';
import { copyLastActivity, isLastActivityKept } from './activity-copy-store.ts';
import { forgetAttributes, unnamedAttributes } from './kept-attribute-store.ts';
import * as store from './outbox-store.ts';
import type { ReportAttribute } from './view.ts';

interface MetadataCopierDeps {
  postgres: Postgres;
  clickhouse: ClickHouse;
  clock: Clock;
  log: Log;
  metrics: Metrics;
}

const transactionMsMax = 120_000;
const nullUuid = '00000000-0000-0000-0000-000000000000';

export class MetadataCopier {
  readonly #deps: MetadataCopierDeps;
  readonly #rows: { add(n: number): void };
  /** Stops the timer of the next round. */
  #stopTimer = () => {};
  /** Monotonic milliseconds of the next check that ClickHouse still has the copy. */
  #nextCheckMs = 0;
  /** Monotonic milliseconds of the next copy of `lastActivityTime`. */
  #nextActivityMs = 0;
  #round: Promise<void> | undefined;
  #again = false;
  #stopped = false;

  constructor(deps: MetadataCopierDeps) {
    this.#deps = deps;
    this.#rows = deps.metrics.counter('report_copied_rows_total', 'Rows of device data copied to ClickHouse.');
  }

  start(): void {
    this.wake();
  }

  /** Called when there is work. */
  wake(): void {
    if (this.#stopped) return;
    if (this.#round) {
      this.#again = true;
      return;
    }
    this.#stopTimer();
    this.#again = false;
    this.#round = this.#run().finally(() => {
      this.#round = undefined;
      if (this.#stopped) return;
      if (this.#again) this.wake();
      else this.#stopTimer = systemScheduler.after(limits.outboxPollMs, () => this.wake());
    });
  }

  async stop(): Promise<void> {
    this.#stopped = true;
    this.#stopTimer();
    await this.#round;
  }

  async #run(): Promise<void> {
    const { postgres, clock, log } = this.#deps;
    try {
      if (clock.monotonic() >= this.#nextCheckMs) {
        if (await this.#isEmpty()) await store.askForAll(postgres);
        await postgres.transaction((queries) => this.#forgetUnnamed(queries), { timeoutMs: transactionMsMax });
        this.#nextCheckMs = clock.monotonic() + limits.outboxCheckMs;
      }
      while (!this.#stopped && (await store.hasWork(postgres, clock.now() - limits.outboxSettleMs))) {
        if (!(await postgres.transaction((queries) => this.#step(queries), { timeoutMs: transactionMsMax }))) return;
      }
      if (clock.monotonic() >= this.#nextActivityMs) {
        await postgres.transaction((queries) => this.#copyActivity(queries), { timeoutMs: transactionMsMax });
        this.#nextActivityMs = clock.monotonic() + limits.outboxActivityMs;
      }
    } catch (error) {
      // A store is unavailable: the outbox keeps the work.
      if (!isAway(error) && !isUnanswered(error)) log.warn('report_feeder_failed', { reason: reasonOf(error) });
    }
  }

  /** Returns false when another host copies. */
  async #step(queries: Queries): Promise<boolean> {
    if (!(await store.tryCopyLock(queries))) return false;
    const rows = await store.outboxRows(queries);
    const isAll = ({ device, profileId, customerId }: store.OutboxRow) => device === null && !profileId && !customerId;
    // A lost table is filled from the beginning.
    const all = rows.some(isAll) || (rows.length > 0 && (await this.#isEmpty()));
    if (all) {
      await store.forgetFilled(queries);
      await this.#copyGroup(queries, { profileIds: [], customerIds: [] });
    } else if (rows.length > 0) {
      await this.#copyChanges(queries, rows);
    }
    await this.#fillKeys(queries);
    await store.deleteOutboxRows(
      queries,
      rows.map(({ id }) => id),
    );
    return true;
  }

  /** Stops copying and counting attributes that no view names any more. */
  async #forgetUnnamed(queries: Queries): Promise<void> {
    if (!(await store.tryCopyLock(queries))) return;
    const unnamed = await unnamedAttributes(queries);
    // Copied rows stay. A key that a view names again counts as not filled, and `#fillKeys` empties it first.
    if (unnamed.length > 0) await forgetAttributes(queries, unnamed);
  }

  /** Marks all copied rows of the attributes as deleted, so that values that changed without a copy are never shown. */
  async #emptyKeys(keys: ReportAttribute[], version: number): Promise<void> {
    await this.#deps.clickhouse.exec(markAttributesDeleted, {
      scopes: keys.map(({ scope }) => scope),
      keys: keys.map(({ key }) => key),
      version,
    });
  }

  async #isEmpty(): Promise<boolean> {
    const [row] = await this.#deps.clickhouse.rows(anyDevice);
    return row === undefined;
  }

  async #copyChanges(queries: Queries, rows: store.OutboxRow[]): Promise<void> {
    const group = { profileIds: unique(rows, 'profileId'), customerIds: unique(rows, 'customerId') };
    if (group.profileIds.length > 0 || group.customerIds.length > 0) await this.#copyGroup(queries, group);

    const version = await store.nextVersion(queries);
    const numbers = [...new Set(rows.flatMap(({ device, key }) => (device !== null && key === null ? [device] : [])))];
    if (numbers.length > 0) {
      const found = await store.devicesOf(queries, numbers);
      const known = new Set(found.map(({ device }) => device));
      await this.#writeDevices(found, version);
      const gone = numbers.filter((device) => !known.has(device));
      if (gone.length > 0) await this.#deleteDevices(gone, version);
    }
    const asked = new Map<string, { device: number; scope: number; key: string }>();
    for (const { device, scope, key } of rows) {
      if (device !== null && scope !== null && key !== null)
        asked.set(`${device} ${scope} ${key}`, { device, scope, key });
    }
    for (let unread = [...asked.values()]; unread.length > 0; ) {
      const found = await store.findAttributeCopies(queries, unread);
      await this.#writeAttributes(found.copies, version);
      for (const { device, scope, key } of found.copies) asked.delete(`${device} ${scope} ${key}`);
      unread = found.unread;
    }
    await this.#writeAttributes(
      [...asked.values()].map((gone) => ({ ...gone, kind: 0, text: '' })),
      version,
    );
  }

  async #copyGroup(queries: Queries, group: store.DeviceGroup): Promise<void> {
    const version = await store.nextVersion(queries);
    for (let after = -1; ; ) {
      const page = await store.devicesAfter(queries, after, group);
      if (page.length === 0) return;
      await this.#writeDevices(page, version);
      after = page.at(-1)!.device;
    }
  }

  async #fillKeys(queries: Queries): Promise<void> {
    const { clock } = this.#deps;
    const keys = await store.keysToFill(queries, clock.now() - limits.outboxSettleMs);
    if (keys.length === 0) return;
    const unfilled = keys.filter(({ isFilled }) => !isFilled);
    if (unfilled.length > 0) await this.#emptyKeys(unfilled, await store.nextVersion(queries));
    const version = await store.nextVersion(queries);
    for (let after: store.AttributePlace = { device: -1, scope: 0, key: '' }; ; ) {
      const page = await store.attributesAfter(queries, after, keys);
      const last = page.at(-1);
      if (last === undefined) break;
      await this.#writeAttributes(page, version);
      after = last;
    }
    const activity = keys.filter(({ scope, key }) => scope === serverScope && activityKeys.includes(key));
    if (activity.length > 0) await this.#fillActivity(queries, activity);
    await store.markFilled(queries, keys, clock.now());
  }

  async #fillActivity(queries: Queries, keys: store.KeyToFill[]): Promise<void> {
    const version = await store.nextVersion(queries);
    const names = keys.map(({ key }) => key);
    for (let after = -1; ; ) {
      const { rows, last } = await store.activityAfter(queries, after, names);
      if (last === undefined) return;
      await this.#writeAttributes(rows, version);
      after = last;
    }
  }

  /** Does nothing when no report names `lastActivityTime`, or another host copies. */
  async #copyActivity(queries: Queries): Promise<void> {
    if (!(await isLastActivityKept(queries)) || !(await store.tryCopyLock(queries))) return;
    const version = await store.nextVersion(queries);
    await copyLastActivity(queries, (copies) => this.#writeAttributes(copies, version));
  }

  #writeDevices(devices: store.DeviceCopy[], version: number): Promise<void> {
    return this.#insert(
      'device_metadata',
      devices.map((device) => ({ ...device, deleted: 0, version })),
    );
  }

  /** The key of a row includes its tenant, which PostgreSQL no longer has: the tenant is read from ClickHouse. */
  async #deleteDevices(devices: number[], version: number): Promise<void> {
    const known = await this.#deps.clickhouse.rows<{ device: string; tenant: string }>(tenantsOfDevices, { devices });
    const empty = { id: nullUuid, name: '', label: '', profile: '', owner: '', deleted: 1, version };
    await this.#insert(
      'device_metadata',
      known.map((row) => ({ ...row, ...empty })),
    );
  }

  #writeAttributes(attributes: store.AttributeCopy[], version: number): Promise<void> {
    const rows = attributes.map((attribute) => ({ ...attribute, deleted: attribute.kind === 0 ? 1 : 0, version }));
    return this.#insert('device_attribute', rows);
  }

  async #insert(table: 'device_metadata' | 'device_attribute', rows: object[]): Promise<void> {
    if (rows.length === 0) return;
    const columns = Object.keys(rows[0]!).join(', ');
    const body = Buffer.from(rows.map((row) => JSON.stringify(row)).join('\n'));
    await this.#deps.clickhouse.insertBlocks(insertRows(table, columns), body);
    this.#rows.add(rows.length);
  }
}

function reasonOf(error: unknown): string {
  if (!isWithoutTables(error)) return messageOf(error);
  return 'ClickHouse has no tables for reports yet: they are made when ClickHouse takes writes. The reasons of /readyz say what to change.';
}

function unique(rows: store.OutboxRow[], column: 'profileId' | 'customerId'): string[] {
  return [...new Set(rows.flatMap((row) => row[column] ?? []))];
}
