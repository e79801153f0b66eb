/** The fault of a message as it passes from a decoding thread to the main thread, with what the diagnostics need. */
import { Fault, type PlainFault } from '../base/errors.ts';
import type { OddTime } from '../diagnostics/odd-time.ts';
import { TimeFault } from './record.ts';

export interface PlainDecodeFault extends PlainFault {
  oddTime: OddTime | undefined;
}

export function plainFault(fault: Fault): PlainDecodeFault {
  const { reason, message, retryAfterSeconds } = fault;
  return { reason, message, retryAfterSeconds, oddTime: fault instanceof TimeFault ? fault.oddTime : undefined };
}

export function faultFromPlain({ reason, message, retryAfterSeconds, oddTime }: PlainDecodeFault): Fault {
  return oddTime === undefined ? new Fault(reason, message, retryAfterSeconds) : new TimeFault(message, oddTime);
}
