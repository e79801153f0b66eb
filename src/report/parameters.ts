/** Values that are bound to a query: SQL gets a placeholder of the right type, never the value. */
import { badRequest } from '../base/errors.ts';
import { limits } from '../base/limits.ts';

export type Bound = string | number | string[] | number[];
type ParameterType = 'UInt8' | 'UInt64' | 'Int64' | 'String' | 'UUID' | 'Float64';

export class QueryParameters {
  readonly values: Record<string, Bound> = {};
  #count = 0;

  one(type: ParameterType, value: string | number): string {
    return this.#bind(type, value);
  }

  many(type: ParameterType, values: string[] | number[]): string {
    return this.#bind(`Array(${type})`, values);
  }

  /** Checks the size: parameters are sent in the URL of a request, which has a limit. */
  checkSize(): void {
    let bytes = 0;
    for (const value of Object.values(this.values)) bytes += encodeURIComponent(String(value)).length + 32;
    if (bytes > limits.reportParameterBytesMax) {
      throw badRequest('report_values', 'The filters or the scope of this report have too many values; name fewer.');
    }
  }

  #bind(type: string, value: Bound): string {
    const name = `p${this.#count}`;
    this.#count += 1;
    this.values[name] = soundValue(value);
    return `{${name}:${type}}`;
  }
}

function soundValue(value: Bound): Bound {
  if (typeof value === 'string') return sound(value);
  return typeof value === 'number'
    ? value
    : (value.map((one) => (typeof one === 'string' ? sound(one) : one)) as Bound);
}

/** Replaces unpaired surrogates, which no stored string contains and which cannot be sent. */
function sound(text: string): string {
  return text.replace(/[\ud800-\udbff](?![\udc00-\udfff])|(?<![\ud800-\udbff])[\udc00-\udfff]/g, '\ufffd');
}
