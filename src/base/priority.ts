/** Lowers the CPU priority of a thread. */
import { getPriority, setPriority } from 'node:os';

/**
 * Gives a thread a nice value, unless the thread has a larger one already: Linux refuses a smaller value to users
 * without CAP_SYS_NICE, for example under `nice -n 15`. `thread` 0 = the calling one.
 */
export function lowerPriority(nice: number, thread = 0): void {
  if (getPriority(thread) < nice) setPriority(thread, nice);
}
