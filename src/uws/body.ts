/**
 * Reads a body with a cap on real bytes (declared or chunked alike) and a cap on what all bodies of this worker hold
 * at once. A body that comes in one piece, as nearly all do, is handed on without a copy.
 */
import { type Fault, tooLarge, unavailable } from '../base/errors.ts';
import type { Exchange } from './exchange.ts';

export class BodyBudget {
  readonly #bytesMax: number;
  bytesInFlight = 0;

  constructor(bytesMax: number) {
    this.#bytesMax = bytesMax;
  }

  take(bytes: number): boolean {
    if (this.bytesInFlight + bytes > this.#bytesMax) return false;
    this.bytesInFlight += bytes;
    return true;
  }

  release(bytes: number): void {
    this.bytesInFlight -= bytes;
  }
}

/**
 * Calls `receive` once with the whole body (valid during the call when it came in one piece), or answers 413 or 503
 * itself. What was read stays counted in the budget until the exchange is answered by `receive`'s caller: bodies that
 * are kept longer count themselves.
 */
export function readBody(
  exchange: Exchange,
  contentLength: number,
  bytesMax: number,
  budget: BodyBudget,
  receive: (body: Buffer) => void,
  onRefused?: (fault: Fault) => void,
): void {
  if (contentLength > bytesMax) {
    refuse(exchange, bodyTooLarge(bytesMax), onRefused);
    return;
  }
  let gathered: Buffer | undefined;
  let length = 0;
  let held = 0;
  const release = () => {
    budget.release(held);
    held = 0;
  };
  exchange.onData((chunk, isLast) => {
    if (exchange.done) return;
    if (isLast && gathered === undefined) {
      if (chunk.byteLength > bytesMax) refuse(exchange, bodyTooLarge(bytesMax), onRefused);
      else receive(Buffer.from(chunk));
      return;
    }
    const total = length + chunk.byteLength;
    if (total > bytesMax) {
      release();
      refuse(exchange, bodyTooLarge(bytesMax), onRefused);
      return;
    }
    if (gathered === undefined || total > gathered.length) {
      // The declared length at once, else doubling: a chunked body never costs more than twice its bytes.
      const size = contentLength >= total ? contentLength : Math.min(bytesMax, Math.max(total * 2, 16_384));
      if (!budget.take(size - held)) {
        release();
        refuse(exchange, bodiesInFlight(), onRefused);
        return;
      }
      held = size;
      exchange.releaseBody = release;
      const larger = Buffer.allocUnsafeSlow(size);
      gathered?.copy(larger, 0, 0, length);
      gathered = larger;
    }
    gathered.set(new Uint8Array(chunk), length);
    length = total;
    if (!isLast) return;
    try {
      receive(gathered.subarray(0, length));
    } finally {
      exchange.releaseBody = undefined;
      release();
    }
  });
}

function refuse(exchange: Exchange, fault: Fault, onRefused: ((fault: Fault) => void) | undefined): void {
  onRefused?.(fault);
  exchange.closeAfter = true;
  exchange.refuse(fault);
}

export function bodiesInFlight(): Fault {
  return unavailable('bodies_in_flight', 'Too many large requests at once; send this one again.');
}

function bodyTooLarge(bytesMax: number): Fault {
  return tooLarge('body_too_large', `Payload size exceeds the limit of ${bytesMax} bytes`);
}
