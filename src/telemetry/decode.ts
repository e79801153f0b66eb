/**
 * Decodes a telemetry message into rows (docs/http.md#telemetry). `message-reader.ts` reads the bytes; a message that
 * is no JSON is read again as lenient JSON where the options allow this. A refused message leaves no row.
 */
import { strictAfter } from '../value/lenient.ts';
import type { DecodeOptions } from './decode-options.ts';
import { MessageReader } from './message-reader.ts';
import type { TelemetrySource } from './record.ts';
import { newMark, type Rows } from './rows.ts';

const reader = new MessageReader('device');
const messageMark = newMark();

/** Adds the points of a message to `rows` and returns their number; a Fault leaves `rows` unchanged. */
export function decodeTelemetry(
  body: Uint8Array,
  device: TelemetrySource,
  now: number,
  rows: Rows,
  options: DecodeOptions,
): number {
  rows.mark(messageMark);
  const countBefore = rows.count;
  try {
    reader.read(body, device, now, rows, options);
  } catch (error) {
    rows.rollback(messageMark);
    if (!options.lenientJson) throw error;
    reader.release();
    return decodeTelemetry(strictAfter(error, body), device, now, rows, { ...options, lenientJson: false });
  } finally {
    reader.release();
  }
  return rows.count - countBefore;
}

/** Decodes strict JSON with the exact reader alone. Tests compare the fast reader with this function. */
export function decodeTelemetryExactly(
  body: Uint8Array,
  device: TelemetrySource,
  now: number,
  rows: Rows,
  options: DecodeOptions,
): number {
  const exact = new MessageReader('device', 'exact');
  const mark = rows.mark();
  try {
    exact.read(body, device, now, rows, options);
  } catch (error) {
    rows.rollback(mark);
    throw error;
  }
  return rows.count - mark.count;
}
