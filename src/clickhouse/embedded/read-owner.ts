/**
 * The owner of a read, in the setting `log_comment`: the embedded engine gives owners turns, and a server shows the
 * owner in its log of queries.
 */
const prefix = 'tenant-';

/** `tenantId` null: of the system administrators. */
export function readOwner(tenantId: string | null): string {
  return `${prefix}${tenantId ?? 'system'}`;
}

/** Returns undefined for a statement of Millrace itself. */
export function ownerOfComment(logComment: string): string | undefined {
  return logComment.startsWith(prefix) ? logComment : undefined;
}
