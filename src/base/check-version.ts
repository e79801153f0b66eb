/** The version of an entity, which grows with each change, in requests that change the entity. */
import { Fault } from './errors.ts';

/** Refuses a change by a user who read the entity before its last change. A user may name no version. */
export function checkVersion(entity: string, stored: number, given: number | null | undefined): void {
  if (given === undefined || given === null || given === stored) return;
  throw new Fault('version', `${entity} was already changed by someone else`);
}
