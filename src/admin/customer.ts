/** Types of customers and tenants, and the rules that need no store. */
import { badRequest } from '../base/errors.ts';
import { checkText } from '../device/model/device.ts';

/** Address, phone and email of a tenant or customer. */
export interface Contact {
  country: string | null;
  state: string | null;
  city: string | null;
  address: string | null;
  address2: string | null;
  zip: string | null;
  phone: string | null;
  email: string | null;
}

export interface Customer extends Contact {
  id: string;
  createdTime: number;
  tenantId: string;
  title: string;
  isPublic: boolean;
  externalId: string | null;
  additionalInfo: unknown;
  version: number;
}

export interface Tenant extends Contact {
  id: string;
  createdTime: number;
  title: string;
  region: string | null;
  profileId: string;
  profileName: string;
  additionalInfo: unknown;
  version: number;
}

const contactFields = ['country', 'state', 'city', 'address', 'address2', 'zip', 'phone', 'email'] as const;

export const publicCustomerTitle = 'Public';

export type ContactInput = { [Field in keyof Contact]?: string | null | undefined };

/** Clears absent members. */
export function checkedContact(input: ContactInput): Contact {
  const contact = Object.fromEntries(contactFields.map((field) => [field, input[field] || null])) as unknown as Contact;
  for (const field of contactFields) {
    const text = contact[field];
    if (text !== null) checkText(field, text);
  }
  if (contact.email !== null) checkEmail(contact.email);
  return contact;
}

export function checkTitle(entity: 'Customer' | 'Tenant', title: string): void {
  if (title.trim() === '') throw badRequest('title', `${entity} title should be specified!`);
  checkText('title', title);
  if (entity === 'Customer' && title === publicCustomerTitle) {
    throw badRequest('title', "'Public' title for customer is system reserved!");
  }
}

export function checkEmail(email: string): void {
  checkText('email', email);
  if (!/^[^\s@]+@[^\s@]+\.[^\s@]+$/.test(email)) {
    throw badRequest('email', `Invalid email address format '${email.slice(0, 100)}'!`);
  }
}
