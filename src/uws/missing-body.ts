/** The refusal of a request that has no body and must have one. */
import { badRequest } from '../base/errors.ts';

export const missingBody = badRequest('missing_body', 'Required request body is missing');

export function requireBody(body: Buffer): void {
  if (body.length === 0) throw missingBody;
}
