/**
 * Names MQTT senders in the log of a crash: a device, or an address before its sign-in. A sender whose packets crashed
 * two processes is refused for a while (`base/running-work.ts`).
 */
import { anyBlocked, isBlocked, type Work } from '../../base/running-work.ts';

export const packets = 'MQTT packets';

/** `deviceId` undefined = not signed in. */
function callerOf(deviceId: string | undefined, address: string): string {
  return deviceId === undefined ? `address ${address}` : `device ${deviceId}`;
}

/** `deviceId` undefined = not signed in. */
export function workOf(deviceId: string | undefined, address: string): Work {
  return { what: packets, caller: callerOf(deviceId, address) };
}

export function isSenderBlocked(deviceId: string | undefined, address: string): boolean {
  if (!anyBlocked()) return false;
  return isBlocked(workOf(deviceId, address));
}
