/** Answers of the analytics component. A report goes out in slices at the pace of its reader, and says what was cut. */
import { unavailable } from '../base/errors.ts';
import { limits } from '../base/limits.ts';
import type { EncodedReport, ReportFormat } from '../report/encode.ts';
import type { View } from '../report/view.ts';
import type { HttpResponse } from '../uws/server.ts';

export function json(value: unknown): HttpResponse {
  return { status: 200, contentType: 'application/json', body: JSON.stringify(value) };
}

/** Exactly these members, in this order. */
export function viewJson(view: View): object {
  const { id, tenantId, customerId, name, type, version, createdTime } = view;
  const { scope, fields, timeRange, groupBy, timeZone, filters, sort, limit } = view;
  return {
    ...{ id, tenantId, customerId, name, type, version, createdTime },
    ...{ scope, fields, timeRange, groupBy, timeZone, filters, sort, limit },
  };
}

const contentTypes: Record<ReportFormat, string> = {
  json: 'application/json',
  csv: 'text/csv; charset=utf-8',
};

/** Reports that readers have not taken yet; past the cap the next one is 503. */
export class UnsentReports {
  bytes = 0;

  answer({ bytes, rows, cutBy }: EncodedReport, format: ReportFormat): HttpResponse {
    const headers: Record<string, string> = {
      'X-Report-Rows': String(rows),
      'Access-Control-Expose-Headers': 'X-Report-Rows, X-Report-Truncated, Retry-After',
      ...(cutBy && { 'X-Report-Truncated': cutBy }),
    };
    const body = Buffer.from(bytes.buffer, bytes.byteOffset, bytes.byteLength);
    const answer = { status: 200, contentType: contentTypes[format], headers };
    if (body.length <= limits.reportSliceBytes) return { ...answer, body };
    if (this.bytes + body.length > limits.reportUnsentBytesMax) {
      throw unavailable('reports_unsent', 'Too many large reports are being sent; try again.');
    }
    this.bytes += body.length;
    const slice = async (at: number) => body.subarray(at, at + limits.reportSliceBytes);
    const release = () => {
      this.bytes -= body.length;
    };
    return { ...answer, body: { bytes: body.length, slice, release } };
  }
}
