/**
 * Logs: one line for each event, with a stable `event` code and the level as a word. NDJSON on stderr, or short lines
 * when stderr is a terminal. A repeated event is written at most once a second for each code, with the number of
 * omitted events. An event that repeats while a store is unavailable is written less and less often. Nothing is logged
 * for each message, and no token or secret is ever a field.
 */
import { type Level, type Logger as Pino, pino } from 'pino';
import { openOutput } from './line-output.ts';

export interface Log {
  debug(event: string, fields?: object): void;
  info(event: string, fields?: object): void;
  warn(event: string, fields?: object): void;
  error(event: string, fields?: object): void;
}

const repeatWindowMs = 1000;
const outageWindowMsMax = 60_000;
/** An event that was absent for this time is logged at once again. */
const outageQuietMs = 15_000;

/** Events that loops repeat while a store is unavailable: the pause after a line with the same reason doubles. */
const outageEvents = new Set([
  'activity_unwritten',
  'api_keys_purge_failed',
  'attribute_heads_unread',
  'clickhouse_slow',
  'clock_unkept',
  'credential_changes_unpruned',
  'credential_changes_unread',
  'erase_failed',
  'gateway_not_told',
  'host_poll_failed',
  'known_devices_unwritten',
  'logins_unanswered',
  'ota_rollout_failed',
  'postgres_slow',
  'report_feeder_failed',
  'retention_failed',
  'rpc_rows_unwritten',
  'sessions_unchecked',
  'storage_insert',
  'tenant_limits_unread',
]);

/**
 * Changes of state, and what only its line names. Each subject, which this field names, has a limit of its own, so that
 * no subject hides the last state of another.
 */
const subjectFields = new Map([
  ['store_away', 'store'],
  ['store_back', 'store'],
  ['ingest_refusing', 'reason'],
  ['child_died', 'child'],
  ['child_back', 'child'],
  ['worker_frozen', 'worker'],
  ['worker_runs_again', 'worker'],
  ['shard_behind', 'shard'],
  ['shard_caught_up', 'shard'],
  ['shard_backlog_full', 'shard'],
  ['stream_lost', 'range'],
  ['stream_away', 'lane'],
  ['stream_back', 'lane'],
  ['stream_stranded', 'stream'],
  ['orphan_journal_shipped', 'journal'],
  ['orphan_journal_not_shipped', 'journal'],
  ['part_attached', 'part'],
  ['part_outdated', 'path'],
  ['part_unreadable', 'path'],
  ['part_rolled_back', 'path'],
  ['mutation_unreadable', 'path'],
]);

export function createLog(level: Level, process_: string): Log {
  const target = process.stderr.isTTY
    ? { write: (line: string) => process.stderr.write(terminalLine(line)) }
    : openOutput(2);
  const base = { process: process_, pid: process.pid };
  const serializers = { error: pino.stdSerializers.err };
  const formatters = { level: (label: string) => ({ level: label }) };
  const logger = pino({ level, base, serializers, formatters, timestamp: pino.stdTimeFunctions.isoTime }, target);
  return new RepeatLimitedLog(logger);
}

interface Window {
  since: number;
  /** The last event, written or not. */
  lastAt: number;
  ms: number;
  reason: string;
  suppressed: number;
}

/** `now`: a monotonic clock in milliseconds. */
export class RepeatLimitedLog implements Log {
  readonly #logger: Pick<Pino, Level | 'isLevelEnabled'>;
  readonly #now: () => number;
  readonly #windows = new Map<string, Window>();

  constructor(logger: Pick<Pino, Level | 'isLevelEnabled'>, now: () => number = () => performance.now()) {
    this.#logger = logger;
    this.#now = now;
  }

  debug(event: string, fields: object = {}): void {
    if (this.#logger.isLevelEnabled('debug')) this.#write('debug', event, fields);
  }

  info(event: string, fields: object = {}): void {
    this.#write('info', event, fields);
  }

  warn(event: string, fields: object = {}): void {
    this.#write('warn', event, fields);
  }

  error(event: string, fields: object = {}): void {
    this.#write('error', event, fields);
  }

  #write(level: Level, event: string, fields: object): void {
    const now = this.#now();
    const subject = subjectFields.get(event);
    const key = subject === undefined ? event : `${event} ${(fields as Record<string, unknown>)[subject]}`;
    const reason = outageEvents.has(event) ? outageReason(fields) : '';
    const window = this.#windows.get(key);
    const goesOn = window !== undefined && window.reason === reason && now - window.lastAt < outageQuietMs;
    const ms = goesOn ? window.ms : repeatWindowMs;
    if (window && now - window.since < ms) {
      window.suppressed += 1;
      window.lastAt = now;
      return;
    }
    const suppressed = window?.suppressed ?? 0;
    const nextMs = goesOn && reason !== '' ? Math.min(2 * ms, outageWindowMsMax) : repeatWindowMs;
    this.#windows.set(key, { since: now, lastAt: now, ms: nextMs, reason, suppressed: 0 });
    this.#logger[level](suppressed > 0 ? { event, ...fields, suppressed } : { event, ...fields });
  }
}

/** Numbers differ from line to line (times, counts), and an outage stays one. */
function outageReason(fields: object): string {
  const { reason } = fields as { reason?: unknown };
  return typeof reason === 'string' ? reason.replaceAll(/\d+/g, '#') : '';
}

/** Characters that JSON leaves as they are, and that a terminal may take for commands. */
const commands = /[\u007f-\u009f\u200e\u200f\u2028-\u202e\u2066-\u2069]/g;

/** Returns the short line of a terminal: names of devices and clients may have any characters. */
export function terminalLine(line: string): string {
  const { level, time, event, process: name, pid: _pid, ...fields } = JSON.parse(line);
  const rest = Object.entries(fields).map(([key, value]) => `${key}=${JSON.stringify(value)}`);
  const text = `${String(time).slice(11, 23)} ${level.padEnd(5)} ${name} ${event} ${rest.join(' ')}`;
  return `${text.replaceAll(commands, (char) => `\\u${char.charCodeAt(0).toString(16).padStart(4, '0')}`)}\n`;
}
