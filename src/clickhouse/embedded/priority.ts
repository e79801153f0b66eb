/**
 * Sets the CPU priority of the engine below ingest. Merges, inserts and statements with ClickHouse's setting `priority`
 * get the full nice value, reads with a waiting caller half of it. An insert that senders of telemetry wait for is not
 * lowered: its end is their acknowledgement. A `priority` above 1 doubles the nice value: late rows have it while
 * senders of live rows wait for their inserts. A thread of the engine serves statements of all kinds, so the priority
 * of the thread is lowered for one statement and raised again. Linux allows the raise with CAP_SYS_NICE only. Without
 * this capability the priority of the whole process is lowered permanently. With this capability the engine would reset
 * a nice value of the process.
 */
import { readdirSync, readFileSync } from 'node:fs';
import { lowerPriority } from '../../base/priority.ts';
import type { SlotKind } from './slots.ts';

const niceMax = 19;
const capSysNice = 1n << 23n;

/**
 * Lowers the priority of each existing thread, unless single threads can be raised again. Called before the engine
 * opens, because its threads inherit the priority.
 */
export function standBack(nice: number): void {
  if (mayRaiseThreads()) return;
  for (const thread of readdirSync('/proc/self/task')) lowerPriority(nice, Number(thread));
}

export function mayRaiseThreads(): boolean {
  const effective = /^CapEff:\s*([0-9a-f]+)$/m.exec(readFileSync('/proc/self/status', 'latin1'))?.[1];
  return effective !== undefined && (BigInt(`0x${effective}`) & capSysNice) !== 0n;
}

/**
 * Returns the nice value of a statement, which the engine ignores without the capability. `isAwaited`: senders of
 * telemetry wait for this insert.
 */
export function niceOf(verb: string, settings: Map<string, string>, nice: number, isAwaited: boolean): number {
  const priority = priorityOf(settings);
  if (priority > 1) return Math.min(niceMax, nice * 2);
  if (isAwaited && priority === 0) return 0;
  return verb === 'INSERT' || priority > 0 ? nice : Math.floor(nice / 2);
}

/** Returns the kind of slot of a statement. */
export function slotOf(verb: string, settings: Map<string, string>): SlotKind {
  if (verb !== 'INSERT') return 'query';
  return priorityOf(settings) > 0 ? 'patient insert' : 'insert';
}

/** Returns ClickHouse's setting `priority`: statements with a lower one go first; 0 = no setting. */
function priorityOf(settings: Map<string, string>): number {
  return Number(settings.get('priority') ?? 0);
}
