/**
 * Logs: one line an event, with a stable `event` code. NDJSON on stderr, or short text when stderr is a terminal.
 * A repeated event is written at most once a second per code, with the number of events that were left out. Nothing is
 * logged per message, and no token or secret is ever a field.
 */
import { type Level, type Logger as Pino, pino } from 'pino';

export interface Log {
  debug(event: string, fields?: object): void;
  info(event: string, fields?: object): void;
  warn(event: string, fields?: object): void;
  error(event: string, fields?: object): void;
}

const repeatWindowMs = 1000;

/** Changes of state: each subject, which this field names, is limited alone, so that no other one hides its last state. */
const subjectFields = new Map([
  ['store_away', 'store'],
  ['store_back', 'store'],
  ['child_died', 'child'],
  ['child_back', 'child'],
]);

export function createLog(level: Level, process_: string): Log {
  const target = process.stderr.isTTY ? { write: writeText } : pino.destination({ dest: 2, sync: true });
  const base = { process: process_, pid: process.pid };
  const serializers = { error: pino.stdSerializers.err };
  const logger = pino({ level, base, serializers, timestamp: pino.stdTimeFunctions.isoTime }, target);
  return new RepeatLimitedLog(logger);
}

class RepeatLimitedLog implements Log {
  readonly #logger: Pino;
  readonly #windows = new Map<string, { since: number; suppressed: number }>();

  constructor(logger: Pino) {
    this.#logger = logger;
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
    const now = performance.now();
    const subject = subjectFields.get(event);
    const key = subject === undefined ? event : `${event} ${(fields as Record<string, unknown>)[subject]}`;
    const window = this.#windows.get(key);
    if (window && now - window.since < repeatWindowMs) {
      window.suppressed += 1;
      return;
    }
    const suppressed = window?.suppressed ?? 0;
    this.#windows.set(key, { since: now, suppressed: 0 });
    this.#logger[level](suppressed > 0 ? { event, ...fields, suppressed } : { event, ...fields });
  }
}

function writeText(line: string): void {
  const { level, time, event, process: name, pid: _pid, ...fields } = JSON.parse(line);
  const label = pino.levels.labels[level] ?? level;
  const rest = Object.entries(fields).map(([key, value]) => `${key}=${JSON.stringify(value)}`);
  process.stderr.write(`${String(time).slice(11, 23)} ${label.padEnd(5)} ${name} ${event} ${rest.join(' ')}\n`);
}
