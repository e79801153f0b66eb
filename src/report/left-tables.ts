/**
 * Ends what a report over several shards left behind: its client has disconnected, its thread or its process was
 * killed, or a shard was down. Tables that are older than every report are dropped by the processes of all hosts.
 */
import { messageOf } from '../base/errors.ts';
import { limits } from '../base/limits.ts';
import type { Log } from '../base/log.ts';
import { type Scheduler, systemScheduler } from '../base/scheduler.ts';
import type { ClickHouse } from '../clickhouse/client.ts';
import { stopQueries } from '../clickhouse/statements.ts';
import { dropTables } from './spread-points.ts';
import { dropTable, leftTables, spreadTables } from './spread-statements.ts';

interface LeftTablesDeps {
  /** All shards in their order. */
  servers: readonly ClickHouse[];
  log: Log;
  scheduler?: Scheduler;
}

export class LeftTables {
  readonly #servers: readonly ClickHouse[];
  readonly #log: Log;
  readonly #scheduler: Scheduler;
  #stopTimer = () => {};

  constructor({ servers, log, scheduler = systemScheduler }: LeftTablesDeps) {
    this.#servers = servers;
    this.#log = log;
    this.#scheduler = scheduler;
  }

  /** One server needs no tables. */
  start(): void {
    if (this.#servers.length === 1) return;
    void this.#dropOld();
    this.#stopTimer = this.#scheduler.every(limits.reportTablesLeftMs, () => void this.#dropOld());
  }

  stop(): void {
    this.#stopTimer();
  }

  /** Stops the statements of an abandoned report, then drops its tables. */
  async end(queryId: string): Promise<void> {
    const timeoutMs = limits.reportDropMsMax;
    // A shard that does not answer delays none of the others. An embedded engine notices the disconnect itself and no
    // longer knows the id.
    const stop = (server: ClickHouse) =>
      server
        .exec(stopQueries, { id: queryId }, { timeoutMs })
        .catch((error) => this.#log.debug('report_kill', { reason: messageOf(error) }));
    await Promise.all(this.#servers.map(stop));
    if (this.#servers.length > 1) await dropTables(spreadTables(queryId), this.#servers, timeoutMs);
  }

  async #dropOld(): Promise<void> {
    for (const server of this.#servers) {
      try {
        const seconds = limits.reportTablesLeftMs / 1000;
        for (const { name } of await server.rows<{ name: string }>(leftTables, { seconds })) {
          await server.exec(dropTable(name));
        }
      } catch (error) {
        this.#log.debug('report_tables_left', { reason: messageOf(error) });
      }
    }
  }
}
