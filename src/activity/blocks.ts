/**
 * The layout of a block, as `activity_block` stores it: the last activity of 512 devices with consecutive numbers,
 * 6 bytes a device, milliseconds since 1970, 0 = never. The SQL function `activity_time` reads the same layout.
 */
import { clockStepMs } from '../base/clock.ts';

export const blockDevices = 512;
const timeBytes = 6;
export const blockBytes = blockDevices * timeBytes;

export function blockOf(device: number): number {
  return Math.floor(device / blockDevices);
}

/** Returns the place of a device in its block. */
export function placeOf(device: number): number {
  return device % blockDevices;
}

export function timeAt(times: Buffer, place: number): number {
  return times.readUIntBE(place * timeBytes, timeBytes);
}

/**
 * Merges the times of a worker into a stored block: the later time counts. Times in the future, which come from a clock
 * that was ahead, become `now`. Returns false when the block did not change.
 */
export function mergeTimes(times: Buffer, seen: Float64Array | undefined, now: number): boolean {
  let isChanged = false;
  for (let place = 0; place < blockDevices; place += 1) {
    const stored = timeAt(times, place);
    let time = stored > now + clockStepMs ? now : stored;
    if (seen !== undefined && seen[place]! > time) time = Math.max(time, Math.min(seen[place]!, now));
    if (time === stored) continue;
    times.writeUIntBE(time, place * timeBytes, timeBytes);
    isChanged = true;
  }
  return isChanged;
}
