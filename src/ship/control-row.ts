/**
 * A row that a working store always accepts: a constant row of device 0, which does not exist. A refusal of other rows
 * counts against them only while this row is accepted. In a cluster the row tests only the shard of device 0.
 */
import type { Clock } from '../base/clock.ts';
import type { ClickHouse } from '../clickhouse/client.ts';
import { insertLatest, insertTelemetry } from '../clickhouse/statements.ts';
import { orderUpTo } from '../ingest/order-number.ts';
import { keyOf } from '../telemetry/keys.ts';
import { Rows } from '../telemetry/rows.ts';

/** Time for which an acceptance counts, so that many refused rows need few control rows. */
const acceptanceMs = 1_000;

export class ControlRow {
  readonly #clickhouse: Pick<ClickHouse, 'insertBlocks'>;
  readonly #clock: Clock;
  readonly #timeoutMs: number;
  readonly #block = controlBlock();
  #acceptedAt = Number.NEGATIVE_INFINITY;

  constructor(clickhouse: Pick<ClickHouse, 'insertBlocks'>, clock: Clock, timeoutMs: number) {
    this.#clickhouse = clickhouse;
    this.#clock = clock;
    this.#timeoutMs = timeoutMs;
  }

  async accepted(): Promise<boolean> {
    const { monotonic } = this.#clock;
    if (monotonic() - this.#acceptedAt < acceptanceMs) return true;
    const options = { timeoutMs: this.#timeoutMs };
    const inserts = [insertTelemetry, insertLatest].map((sql) =>
      this.#clickhouse.insertBlocks(sql, this.#block, options).then(
        () => true,
        () => false,
      ),
    );
    if (!(await Promise.all(inserts)).every(Boolean)) return false;
    this.#acceptedAt = monotonic();
    return true;
  }

  /** Called after a failure of the store: the next check sends the row again. */
  forget(): void {
    this.#acceptedAt = Number.NEGATIVE_INFINITY;
  }
}

function controlBlock(): Buffer {
  const rows = new Rows(1);
  rows.addDouble(keyOf('control')!, 1);
  rows.endRecord(0, 0);
  return Buffer.concat(rows.encode({ order: orderUpTo(0), micros: 0, firstPlace: 0 }));
}
