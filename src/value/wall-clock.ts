/** The wall clock of a time zone: the local date and time at an instant, for every date that JavaScript has. */
import { badRequest } from '../base/errors.ts';

export class WallClock {
  readonly #format: Intl.DateTimeFormat;

  /** Throws a 400 fault for an unknown name. */
  constructor(timeZone: string) {
    try {
      this.#format = new Intl.DateTimeFormat('en-US', {
        timeZone,
        calendar: 'iso8601',
        hourCycle: 'h23',
        era: 'short',
        year: 'numeric',
        month: 'numeric',
        day: 'numeric',
        hour: 'numeric',
        minute: 'numeric',
        second: 'numeric',
      });
    } catch {
      throw badRequest('time_zone', `Unknown time zone '${timeZone.slice(0, 100)}'.`);
    }
  }

  /** Returns the local time at `ts` as if it were UTC, in whole seconds. */
  local(ts: number): number {
    const parts: Record<string, string> = {};
    for (const { type, value } of this.#format.formatToParts(ts)) parts[type] = value;
    const year = parts['era']?.startsWith('B') ? 1 - Number(parts['year']) : Number(parts['year']);
    const date = new Date(0);
    date.setUTCFullYear(year, Number(parts['month']) - 1, Number(parts['day']));
    const time = Number(parts['hour']) * 3_600_000 + Number(parts['minute']) * 60_000 + Number(parts['second']) * 1000;
    return date.getTime() + time;
  }
}
