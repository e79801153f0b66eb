/** SQL of the mark of a device that has received its credentials: the server attribute `provisionState`. */
import { ownValue } from '../attributes/attributes.ts';
import { serverScope } from '../attributes/scope.ts';
import { upsertAttributes } from '../attributes/write-store.ts';
import type { Queries } from '../postgres/client.ts';

/**
 * Server attribute of a device that has received its credentials. Users of a customer must not change or delete it: a
 * sender that knows the secret of the profile would get the credentials that the device has then.
 */
export const provisionStateKey = 'provisionState';
const provisioned = ownValue.string('provisioned');

/**
 * Returns a name of the write that marked the device; undefined when the device has not received its credentials. The
 * name contains the id of its transaction, because two requests may have the same time.
 */
export async function findMark(queries: Queries, device: number): Promise<string | undefined> {
  const [row] = await queries.query<{ mark: string }>(
    `select concat(xmin, ' ', last_update_ts) as mark from attribute
      where device = $1 and scope = ${serverScope} and key = $2 and value = $3`,
    [device, provisionStateKey, provisioned.text],
  );
  return row?.mark;
}

/** Server attributes are sent to no device, so this write notifies no session. */
export async function markProvisioned(queries: Queries, device: number, now: number): Promise<void> {
  await upsertAttributes(queries, [
    { device, scope: serverScope, key: provisionStateKey, value: provisioned, ts: now },
  ]);
}
