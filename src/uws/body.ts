/**
 * Reads a body with a cap on received bytes (declared or chunked). A body that arrives in one piece, as nearly all do,
 * is passed on without a copy. Any other body takes room in this process as its bytes arrive. Until its sender is known
 * it takes only a little room, and then the socket is paused.
 */
import { type BudgetOwner, ByteBudget, Held } from '../base/byte-budget.ts';
import { asFault, type Fault, tooLarge, unavailable } from '../base/errors.ts';
import { networkOf } from '../base/network.ts';
import type { Exchange } from './exchange.ts';

/** Names the sender of a request, as `device 7` or `user …`; throws the fault for an unknown sender. */
export type Admit<Subject> = (subject: Subject, exchange: Exchange) => string | Promise<string>;

/** The room for bodies in a process: half of it for unknown senders, and a share for each sender. */
export class BodyRoom {
  readonly #budget: ByteBudget;
  readonly #bytesMax: number;
  #bodyBytesMax = 0;

  constructor(bytesMax: number) {
    this.#budget = new ByteBudget(bytesMax);
    this.#bytesMax = bytesMax;
  }

  get held(): number {
    return this.#budget.held;
  }

  /** Called for each route with the size of its largest body. */
  mayHold(bodyBytesMax: number): void {
    this.#bodyBytesMax = Math.max(this.#bodyBytesMax, bodyBytesMax);
  }

  /** A sender may use room for one body of the largest size of any route, an address half of all room. */
  ofSender(name: string, remoteAddress: string): Held {
    return new Held(this.#budget, [{ name, bytesMax: this.#bodyBytesMax }, this.#shareOf(remoteAddress)]);
  }

  /** A body that arrived in one piece, and that a handler keeps before its sender is known. */
  ofPiece(remoteAddress: string): Held {
    return new Held(this.#budget, [this.#shareOf(remoteAddress)]);
  }

  #shareOf(remoteAddress: string): BudgetOwner {
    const bytesMax = Math.max(this.#bodyBytesMax, this.#bytesMax / 2);
    return { name: `address ${networkOf(remoteAddress)}`, bytesMax };
  }

  ofStranger(remoteAddress: string): Held {
    return new Held(this.#budget, [
      { name: 'strangers', bytesMax: this.#bytesMax / 2 },
      { name: `stranger ${networkOf(remoteAddress)}`, bytesMax: this.#bytesMax / 4 },
    ]);
  }
}

/** Called before a body is refused. */
export type OnRefused<Subject> = (fault: Fault, subject: Subject, exchange: Exchange) => void;

/**
 * Calls `receive` once with the whole body, or answers 413, 503 or the fault of `admit` itself. A body that arrived in
 * one piece is valid during the call only. Any other body is `exchange.ownBody`, whose room is released when `receive`
 * returns, unless `keepBody` was called. Without `admit` every sender is unknown.
 */
export function readBody<Subject>(
  exchange: Exchange,
  contentLength: number,
  bytesMax: number,
  room: BodyRoom,
  subject: Subject,
  admit: Admit<Subject> | undefined,
  receive: (body: Buffer) => void,
  onRefused?: OnRefused<Subject>,
): void {
  if (contentLength > bytesMax) {
    refuse(exchange, bodyTooLarge(bytesMax), subject, onRefused);
    return;
  }
  let gathered: GatheredBody | undefined;
  exchange.onData((chunk, isLast) => {
    if (exchange.done) return;
    if (isLast && gathered === undefined) {
      if (chunk.byteLength > bytesMax) refuse(exchange, bodyTooLarge(bytesMax), subject, onRefused);
      else receive(Buffer.from(chunk));
      return;
    }
    if (gathered === undefined) {
      const refused = onRefused && ((fault: Fault) => onRefused(fault, subject, exchange));
      gathered = new GatheredBody({ exchange, contentLength, bytesMax, room, receive, onRefused: refused });
      if (admit) gathered.admit(() => admit(subject, exchange));
    }
    gathered.add(chunk, isLast);
  });
}

/**
 * Keeps the room of `exchange.ownBody` until the caller calls the returned function, even when the client disconnects
 * meanwhile. Returns undefined when `body` is another buffer.
 */
export function keepBody(exchange: Exchange, body: Buffer): (() => void) | undefined {
  const { ownBody, releaseBody } = exchange;
  if (ownBody !== body || !releaseBody) return undefined;
  exchange.ownBody = undefined;
  exchange.releaseBody = undefined;
  return releaseBody;
}

/** Passes a body that has its own room. The room is released after the call, unless `keepBody` was called. */
export function passOwnBody(exchange: Exchange, body: Buffer, receive: (body: Buffer) => void): void {
  exchange.ownBody = body;
  try {
    receive(body);
  } finally {
    exchange.ownBody = undefined;
    exchange.releaseBody?.();
    exchange.releaseBody = undefined;
  }
}

interface GatheredDeps {
  exchange: Exchange;
  contentLength: number;
  bytesMax: number;
  room: BodyRoom;
  receive: (body: Buffer) => void;
  onRefused: ((fault: Fault) => void) | undefined;
}

class GatheredBody {
  readonly #deps: GatheredDeps;
  #held: Held;
  #bytes = Buffer.alloc(0);
  #length = 0;
  #isWhole = false;
  #isPending = false;

  constructor(deps: GatheredDeps) {
    this.#deps = deps;
    const { exchange, room } = deps;
    this.#held = room.ofStranger(exchange.remoteAddress());
    exchange.releaseBody = () => this.#held.release();
  }

  /** Resumes the socket when the sender is known. */
  admit(sender: () => string | Promise<string>): void {
    const { exchange } = this.#deps;
    try {
      const name = sender();
      if (typeof name === 'string') {
        this.#belongTo(name);
        return;
      }
      this.#isPending = true;
      exchange.pause();
      name.then(
        (known) => this.#admitted(known),
        (error: unknown) => this.#refuseSender(error),
      );
    } catch (error) {
      this.#refuseSender(error);
    }
  }

  add(chunk: ArrayBuffer, isLast: boolean): void {
    const { exchange, contentLength, bytesMax } = this.#deps;
    if (exchange.done) return;
    const total = this.#length + chunk.byteLength;
    if (total > bytesMax) {
      this.#refuse(bodyTooLarge(bytesMax));
      return;
    }
    if (total > this.#bytes.length) {
      // The buffer doubles up to the declared length, so it is never more than twice the received bytes.
      const most = contentLength >= total ? contentLength : bytesMax;
      const size = Math.min(most, Math.max(total * 2, 16_384));
      if (!this.#held.grow(size)) {
        this.#refuse(bodiesInFlight());
        return;
      }
      const larger = Buffer.allocUnsafeSlow(size);
      this.#bytes.copy(larger, 0, 0, this.#length);
      this.#bytes = larger;
    }
    this.#bytes.set(new Uint8Array(chunk), this.#length);
    this.#length = total;
    this.#isWhole = isLast;
    if (isLast && !this.#isPending) this.#finish();
  }

  #admitted(name: string): void {
    const { exchange } = this.#deps;
    this.#isPending = false;
    if (exchange.done || !this.#belongTo(name)) return;
    exchange.resume();
    if (this.#isWhole) this.#finish();
  }

  /** Moves the received bytes to the share of the sender. */
  #belongTo(name: string): boolean {
    const { exchange, room } = this.#deps;
    const { bytes } = this.#held;
    this.#held.release();
    this.#held = room.ofSender(name, exchange.remoteAddress());
    if (this.#held.grow(bytes)) return true;
    this.#refuse(bodiesInFlight());
    return false;
  }

  #finish(): void {
    const { exchange, receive } = this.#deps;
    passOwnBody(exchange, this.#bytes.subarray(0, this.#length), receive);
  }

  /** Skips the rest of the body: a client that is still sending would not read the answer of a closed connection. */
  #refuseSender(error: unknown): void {
    const { exchange, onRefused } = this.#deps;
    this.#held.release();
    if (exchange.done) return;
    const fault = asFault(error);
    onRefused?.(fault);
    exchange.resume();
    exchange.refuse(fault);
  }

  #refuse(fault: Fault): void {
    const { exchange, onRefused } = this.#deps;
    this.#held.release();
    if (exchange.done) return;
    onRefused?.(fault);
    refuse(exchange, fault, undefined, undefined);
  }
}

function refuse<Subject>(
  exchange: Exchange,
  fault: Fault,
  subject: Subject,
  onRefused: OnRefused<Subject> | undefined,
): void {
  onRefused?.(fault, subject, exchange);
  exchange.closeAfter = true;
  exchange.refuse(fault);
}

export function bodiesInFlight(): Fault {
  return unavailable('bodies_in_flight', 'Too many large requests at once; send this one again.');
}

function bodyTooLarge(bytesMax: number): Fault {
  return tooLarge('body_too_large', `Payload size exceeds the limit of ${bytesMax} bytes`);
}
