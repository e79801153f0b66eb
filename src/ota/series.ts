/**
 * Telemetry that this server writes about the packages of a device, at server time; durable when it resolves. With
 * `ingest.ack: store` the journal is enough where ClickHouse does not take the rows now: a shard that is down delays
 * the packages of no device.
 */
import type { Fault } from '../base/errors.ts';
import type { Ingest } from '../ingest/accept.ts';
import { isKept } from '../ingest/store-acks.ts';
import { keyOf } from '../telemetry/keys.ts';
import type { Rows } from '../telemetry/rows.ts';
import type { TypedValue } from '../value/typed.ts';

export type SeriesIngest = Pick<Ingest, 'accept'>;

interface Series {
  device: number;
  values: Map<string, TypedValue>;
}

const noBody = new Uint8Array(0);

export function appendSeries(ingest: SeriesIngest, device: number, values: Map<string, TypedValue>): Promise<void> {
  return new Promise((resolve, reject) => {
    const refuse = (fault: Fault) => (isKept(fault) ? resolve() : reject(fault));
    ingest.accept(decodeSeries, noBody, { device, values }, { acknowledge: resolve, refuse });
  });
}

function decodeSeries(_body: Uint8Array, { device, values }: Series, now: number, rows: Rows): number {
  for (const [key, value] of values) rows.addValue(keyOf(key)!, value);
  rows.endRecordNow(device, now);
  return values.size;
}
