/** Telemetry that this server writes about the packages of a device, at server time; durable when it resolves. */
import type { Ingest } from '../ingest/accept.ts';
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
    ingest.accept(decodeSeries, noBody, { device, values }, { acknowledge: resolve, refuse: reject });
  });
}

function decodeSeries(_body: Uint8Array, { device, values }: Series, now: number, rows: Rows): number {
  for (const [key, value] of values) rows.addValue(keyOf(key)!, value);
  rows.endRecordNow(device, now);
  return values.size;
}
