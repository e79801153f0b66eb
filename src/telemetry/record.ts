/**
 * Adds one record of a telemetry message as the exact reader (`value/json.ts`) has parsed it: the rules of keys, values
 * and times (docs/http.md#telemetry). The fast reader of `message-reader.ts` must agree with these rules.
 */
import { dayMs } from '../base/durations.ts';
import { badRequest, Fault } from '../base/errors.ts';
import { inMilliseconds, type OddTime, unitOfTime } from '../diagnostics/odd-time.ts';
import { type Json, JsonNumber, type JsonObject } from '../value/json.ts';
import { typedValue } from '../value/typed.ts';
import type { DecodeOptions } from './decode-options.ts';
import { keyFault, keyOf } from './keys.ts';
import type { Rows } from './rows.ts';

/** The kind of sender: a gateway's records are in arrays under the names of devices, with further rules. */
export type Form = 'device' | 'gateway';

/** The device of the points. */
export interface TelemetrySource {
  readonly number: number;
}

/**
 * Adds one record: `{"ts":…,"values":{…}}` or bare members at server time. `form` gateway: also `{"values":{…}}` at
 * server time, which only the gateway's protocol allows (docs/mqtt.md#gateways).
 */
export function addRecord(
  json: Json,
  device: number,
  now: number,
  rows: Rows,
  options: DecodeOptions,
  form: Form,
): void {
  if (!(json instanceof Map)) throw form === 'device' ? wrongShape() : wrongRecord();
  const [ts, values] = [json.get('ts'), json.get('values')];
  if (ts !== undefined && values !== undefined) {
    addTimed(ts, values, device, now, rows, options);
    return;
  }
  const members = form === 'gateway' && values instanceof Map ? values : json;
  if (addMembers(members, rows, options)) rows.endRecordNow(device, now);
}

function addTimed(json: Json, values: Json, device: number, now: number, rows: Rows, options: DecodeOptions): void {
  const given = readTs(json);
  const unit = options.convertsUnits && given !== undefined ? unitOfTime(given, now) : undefined;
  const ts = unit === undefined ? given : inMilliseconds(given!, unit);
  if (ts === undefined || !isNear(ts, now, options)) throw wrongTs(json, ts, options, now);
  if (!(values instanceof Map)) throw badRequest('wrong_shape', 'The member "values" must be an object.');
  if (!addMembers(values, rows, options)) return;
  rows.endRecord(device, ts);
  if (unit !== undefined) rows.noteConverted(given!, unit);
}

/** True when at least one row was added. */
function addMembers(members: JsonObject, rows: Rows, options: DecodeOptions): boolean {
  const countBefore = rows.count;
  for (const [name, json] of members) {
    const key = keyOf(name);
    if (!key) throw keyFault(name) ?? badRequest('bad_key', 'A key is not valid text.');
    const value = typedValue(json, options.castNumericStrings);
    if (value) rows.addValue(key, value);
  }
  return rows.count > countBefore;
}

/** Returns the milliseconds of an integer, of a number (truncated), or of a string of digits. */
function readTs(json: Json): number | undefined {
  const text =
    json instanceof JsonNumber ? json.literal : typeof json === 'string' && /^-?\d+$/.test(json) ? json : undefined;
  // Adding zero avoids a ts of -0.
  return text === undefined ? undefined : Math.trunc(Number(text)) + 0;
}

function isNear(ts: number, now: number, options: DecodeOptions): boolean {
  return ts >= now - options.pastMsMax && ts <= now + options.futureMsMax;
}

/** `ts`: undefined when `json` is no whole number. */
function wrongTs(json: Json, ts: number | undefined, options: DecodeOptions, now: number): Fault {
  if (ts === undefined) {
    return badRequest('bad_ts', 'The member "ts" must be a whole number of milliseconds since 1970.');
  }
  const days = Math.floor((ts < now ? options.pastMsMax : options.futureMsMax) / dayMs);
  const shown = String(json instanceof JsonNumber ? json.literal : json).slice(0, 40);
  const unit = unitOfTime(ts, now);
  const hint = unit === undefined ? '' : ` It looks like ${unit}: send milliseconds.`;
  const message = `The member "ts" is ${shown}: it may be at most ${days} days from now.${hint}`;
  const kind = unit ?? (ts > now ? 'ahead' : undefined);
  return new TimeFault(message, kind && { kind, ts });
}

/** The refusal of a record for its time. */
export class TimeFault extends Fault {
  readonly oddTime: OddTime | undefined;

  constructor(message: string, oddTime: OddTime | undefined) {
    super('ts_out_of_range', message);
    this.oddTime = oddTime;
  }
}

function wrongRecord(): Fault {
  return badRequest('wrong_shape', 'Each record must be an object.');
}

/** The refusal of a body that has no records. */
export function wrongShape(): Fault {
  return badRequest('wrong_shape', 'The body must be an object or an array of objects.');
}
