/** The policy for a new device or customer whose name is taken: a refusal, or the name with a suffix that is free. */
import { randomInt } from 'node:crypto';
import { Fault } from '../base/errors.ts';

export interface NameConflict {
  policy: 'FAIL' | 'UNIQUIFY';
  separator: string;
  strategy: 'RANDOM' | 'INCREMENTAL';
}

export const refuseTakenName: NameConflict = { policy: 'FAIL', separator: '_', strategy: 'RANDOM' };

interface Names {
  /** The reason of the fault for a taken name. */
  takenReason: string;
  /** Returns the number after the greatest `N` of the names that are `prefix` followed by `N`. */
  next(prefix: string): Promise<number>;
}

const triesMax = 100;
const suffixAlphabet = 'abcdefghijklmnopqrstuvwxyz0123456789';

/**
 * Calls `create` with `name`. Repeats the call with a suffix while the name is taken and the policy allows a suffix.
 */
export async function underFreeName<Entity>(
  name: string,
  conflict: NameConflict,
  names: Names,
  create: (name: string) => Promise<Entity>,
): Promise<Entity> {
  const prefix = name + conflict.separator;
  let wanted = name;
  for (let attempt = 0; ; attempt += 1) {
    try {
      return await create(wanted);
    } catch (error) {
      const isTaken = error instanceof Fault && error.reason === names.takenReason;
      if (!isTaken || conflict.policy === 'FAIL' || attempt === triesMax) throw error;
      // Another caller may take that number first; the next round tries the next number.
      wanted = prefix + (conflict.strategy === 'INCREMENTAL' ? await names.next(prefix) : randomSuffix());
    }
  }
}

function randomSuffix(): string {
  let text = '';
  for (let i = 0; i < 6; i += 1) text += suffixAlphabet[randomInt(suffixAlphabet.length)];
  return text;
}
