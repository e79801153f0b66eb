/** The scopes of attributes, and the numbers by which they are stored. A number never changes its meaning. */
export const scopes = ['CLIENT_SCOPE', 'SHARED_SCOPE', 'SERVER_SCOPE'] as const;
export type Scope = (typeof scopes)[number];

export const sharedScope = 2;
export const serverScope = 3;
export const scopeNumber: Record<Scope, number> = {
  CLIENT_SCOPE: 1,
  SHARED_SCOPE: sharedScope,
  SERVER_SCOPE: serverScope,
};

/** Returns one number for an owner and a scope. */
export function ownerAndScope(owner: number, scope: number): number {
  return owner * 4 + scope;
}
