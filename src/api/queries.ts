/** Query parameters that calls of several files have: the rule for a taken name, a list of keys, a wish for a mail. */
import type { NameConflict } from '../admin/name-conflict.ts';
import * as Type from '../base/schema.ts';
import { commaList } from '../rest/parameters.ts';

/** The policy for a new entity whose name is taken. */
export const conflictQuery = Type.Object({
  nameConflictPolicy: Type.Optional(Type.Enum(['FAIL', 'UNIQUIFY'])),
  uniquifySeparator: Type.Optional(Type.String()),
  uniquifyStrategy: Type.Optional(Type.Enum(['RANDOM', 'INCREMENTAL'])),
});

export function nameConflict(query: Type.Static<typeof conflictQuery>): NameConflict {
  const { nameConflictPolicy: policy = 'FAIL', uniquifySeparator: separator = '_' } = query;
  return { policy, separator, strategy: query.uniquifyStrategy ?? 'RANDOM' };
}

/** Keys that a query names: `keys=a,b`, or repeated `key=`, which a key that holds a comma needs. */
export const keysQuery = Type.Object({
  keys: Type.Optional(commaList(Type.String({ description: 'Several keys, with commas between them' }))),
  key: Type.Optional(commaList(Type.String({ description: 'One key, which may hold a comma; may be repeated' }))),
});

/** Returns each key once, in order. */
export function keyList({ keys = [], key = [] }: Type.Static<typeof keysQuery>): string[] {
  return [...new Set([...keys, ...key].filter((each) => each !== ''))];
}

/** A wish for a mail to the user. There is no mail server: `users.ts` refuses the wish, an activation ignores it. */
export const mailQuery = Type.Object({ sendActivationMail: Type.Optional(Type.Boolean()) });
