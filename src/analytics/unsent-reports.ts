/** Sends reports in slices at the pace of their readers, with headers that say what was left out. */
import type { TenantPrincipal } from '../auth/roles.ts';
import { ByteBudget } from '../base/byte-budget.ts';
import { Fault, unavailable } from '../base/errors.ts';
import { limits } from '../base/limits.ts';
import { placeOwners } from '../base/places.ts';
import type { EncodedReport, ReportFormat } from '../report/encode.ts';
import type { Answer } from '../uws/exchange.ts';

const contentTypes: Record<ReportFormat, string> = {
  json: 'application/json',
  csv: 'text/csv; charset=utf-8',
};

/**
 * Reports that readers have not taken yet: a cap for all of them, a half for one tenant, a quarter for one customer.
 */
export class UnsentReports {
  readonly #budget: ByteBudget;
  readonly #bytesMax: number;

  constructor(bytesMax: number = limits.reportUnsentBytesMax) {
    this.#budget = new ByteBudget(bytesMax);
    this.#bytesMax = bytesMax;
  }

  get bytes(): number {
    return this.#budget.held;
  }

  answer(
    { bytes, rows, cutBy }: EncodedReport,
    format: ReportFormat,
    { tenantId, customerId }: Pick<TenantPrincipal, 'tenantId' | 'customerId'>,
  ): Answer {
    const headers: Record<string, string> = {
      'X-Report-Rows': String(rows),
      'Access-Control-Expose-Headers': 'X-Report-Rows, X-Report-Truncated, Retry-After',
      ...(cutBy && { 'X-Report-Truncated': cutBy }),
    };
    const body = Buffer.from(bytes.buffer, bytes.byteOffset, bytes.byteLength);
    const answer = { status: 200, contentType: contentTypes[format], headers };
    if (body.length <= limits.reportSliceBytes) return { ...answer, body };
    // One report of any length fits into a share.
    const share = (part: number) => Math.max(body.length, this.#bytesMax * part);
    const owners = [{ name: tenantId, bytesMax: share(0.5) }];
    if (customerId !== null) owners.push({ name: customerId, bytesMax: share(0.25) });
    if (this.#budget.lacking(body.length, owners)) throw tooManyUnsent;
    if (!this.#budget.take(body.length, owners)) {
      throw unavailable('reports_unsent', 'Too many large reports are being sent; try again.');
    }
    const slice = async (at: number) => body.subarray(at, at + limits.reportSliceBytes);
    const release = () => this.#budget.release(body.length, owners);
    return { ...answer, body: { bytes: body.length, owners: placeOwners(tenantId, customerId), slice, release } };
  }
}

const tooManyUnsent = new Fault(
  'reports_unsent_share',
  'You have not read your earlier reports: read them to their end, then ask for this one again.',
  1,
);
