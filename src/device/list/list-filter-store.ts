/** SQL conditions of the lists of devices: owner, profile, activity and text. `list-store.ts` uses them. */
import type { Queries } from '../../postgres/client.ts';
import { contains, containsPattern } from '../../postgres/page.ts';

export interface DeviceFilter {
  tenantId: string;
  customerId?: string | undefined;
  /** Name of a profile. */
  type?: string | undefined;
  profileId?: string | undefined;
  active?: boolean | undefined;
}

/** A filter and a text to search, with the profile, if any, that exists. */
export interface ResolvedFilter {
  tenantId: string;
  customerId: string | undefined;
  profileId: string | undefined;
  active: boolean | undefined;
  /** '' = no search. */
  text: string;
}

/** Returns undefined when no device can be in the list. */
export async function resolveFilter(
  queries: Queries,
  filter: DeviceFilter,
  text: string,
): Promise<ResolvedFilter | undefined> {
  const { tenantId, type, active } = filter;
  const customerId = filter.customerId || undefined;
  const profileId = filter.profileId || undefined;
  if (!type) return { tenantId, customerId, profileId, active, text };
  const [profile] = await queries.query<{ id: string }>(
    'select id from device_profile where tenant_id = $1 and name = $2',
    [tenantId, type],
  );
  if (!profile || (profileId && profileId.toLowerCase() !== profile.id)) return undefined;
  return { tenantId, customerId, profileId: profile.id, active, text };
}

/** The access to a searched text: the index of three letters where it helps, or a comparison with each text. */
type Access = 'letters' | 'each';

/** Conditions on `device d`, with the values of their parameters; the first condition and value are the tenant. */
export interface Conditions {
  where: string[];
  values: unknown[];
}

export function conditionsOf(resolved: ResolvedFilter, access: Access = 'each'): Conditions {
  const { where: owners, values } = ownerConditions(resolved);
  const where = owners.map((condition) => `d.${condition}`);
  if (resolved.active !== undefined) where.push(resolved.active ? activeCondition : inactiveCondition);
  if (resolved.text !== '') where.push(searched('d', resolved.text, access, (value) => `$${values.push(value)}`));
  return { where, values };
}

/** Returns conditions on columns that both `device` and `device_group` have, without a name of the table. */
export function ownerConditions({ tenantId, customerId, profileId }: ResolvedFilter): Conditions {
  const where = ['tenant_id = $1'];
  const values: unknown[] = [tenantId];
  if (customerId !== undefined) where.push(`customer_id = $${values.push(customerId)}`);
  if (profileId !== undefined) where.push(`device_profile_id = $${values.push(profileId)}`);
  return { where, values };
}

/** SQL: 1 = the device is active, 0 = it is inactive. The statement must begin with `withBits`. */
export const activeBit = 'get_bit((select bytes from bits), d.number)';

/** Inequalities, because the planner expects a third of the devices of an inequality, and few of an equality. */
export const activeCondition = `${activeBit} > 0`;
export const inactiveCondition = `${activeBit} < 1`;

/** The bits of all devices (migration 0053), with zeros up to the greatest number of a device. */
export const withBits = `with stored as materialized (
    select coalesce(string_agg(int8send(bits), '' order by word), '') as bytes from activity_bits),
  bits as materialized (
    select bytes || decode(repeat('00', greatest(0, (select max(number) / 8 + 1 from device) - length(bytes))::int), 'hex')
           as bytes
      from stored)`;

/**
 * True when an index of three letters helps: pg_trgm has only ASCII letters and digits in a database of locale C.
 */
export function hasLetters(text: string): boolean {
  return /[a-z0-9]{3}/i.test(text);
}

/** Returns the condition that `text` is a part of the name or the label of the device in `table`. */
export function searched(table: string, text: string, access: Access, parameter: (value: unknown) => string): string {
  const pattern = `(lower(${parameter(containsPattern(text))}::text collate any_letter_case) collate "C")`;
  // `textlike` hides the operator from the planner, which reads the whole index for a pattern without three letters.
  const isIndexed = access === 'letters' && hasLetters(text);
  const found = isIndexed ? `${table}.search_text like ${pattern}` : `textlike(${table}.search_text, ${pattern})`;
  if (!text.includes('\n')) return found;
  // A line end divides the name from the label.
  const whole = parameter(containsPattern(text));
  return `${found} and (${contains(`${table}.name`, whole)} or ${contains(`${table}.label`, whole)})`;
}
