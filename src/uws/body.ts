/**
 * Reads a body with a cap on received bytes (declared or chunked). A body that arrives in one piece, as nearly all do,
 * is passed on without a copy. Any other body takes room in this process as its bytes arrive. Until its sender is known
 * it takes only a little room, and then the socket is paused.
 */
import { type BudgetOwner, ByteBudget, Held } from '../base/byte-budget.ts';
import { asFault, type Fault, tooLarge, unavailable } from '../base/errors.ts';
import { networkOf } from '../base/network.ts';
import { type Exchange, faultAnswer } from './exchange.ts';
import type { HeldRefusals } from './held-refusals.ts';
import type { SkippedBodies } from './skipped-bodies.ts';

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

/** Bodies above `bytesMin` bytes, declared or received, which the handler may have to refuse for want of a place. */
export interface LargeBodies<Subject> {
  readonly bytesMin: number;
  /** Called at the head of the request, and before more memory is taken. Returns undefined for an unknown sender. */
  refusal(subject: Subject, exchange: Exchange): Fault | undefined;
}

/** The rules for the bodies of one route. */
export interface BodyRules<Subject> {
  readonly bytesMax: number;
  readonly room: BodyRoom;
  readonly refusals: HeldRefusals;
  readonly skipped: SkippedBodies;
  /** Undefined: every sender is unknown. */
  readonly admit: Admit<Subject> | undefined;
  readonly large?: LargeBodies<Subject> | undefined;
  readonly onRefused?: OnRefused<Subject> | undefined;
}

/**
 * Calls `receive` once with the whole body, or answers 413, 503 or the fault of `admit` or `large` itself. A body that
 * arrived in one piece is valid during the call only. Any other body is `exchange.ownBody`, whose room is released when
 * `receive` returns, unless `keepBody` was called.
 */
export function readBody<Subject>(
  exchange: Exchange,
  contentLength: number,
  subject: Subject,
  rules: BodyRules<Subject>,
  receive: (body: Buffer) => void,
): void {
  const { bytesMax, admit } = rules;
  const fault =
    contentLength > bytesMax ? bodyTooLarge(bytesMax) : refusalOfLarge(exchange, contentLength, subject, rules);
  if (fault !== undefined) refuse(exchange, contentLength, fault, subject, rules);
  let gathered: GatheredBody<Subject> | undefined;
  exchange.onData((chunk, isLast) => {
    exchange.isBodyWhole = isLast;
    if (exchange.skipped !== undefined) {
      exchange.skipped.received();
      return;
    }
    if (exchange.done) return;
    if (isLast && gathered === undefined) {
      if (chunk.byteLength > bytesMax) refuse(exchange, contentLength, bodyTooLarge(bytesMax), subject, rules);
      else receive(Buffer.from(chunk));
      return;
    }
    if (gathered === undefined) {
      gathered = new GatheredBody({ exchange, contentLength, subject, rules, receive });
      if (admit) gathered.admit(() => admit(subject, exchange));
    }
    gathered.add(chunk, isLast);
  });
}

/** Returns the refusal of a large body that would find no place. */
function refusalOfLarge<Subject>(
  exchange: Exchange,
  bytes: number,
  subject: Subject,
  { large }: BodyRules<Subject>,
): Fault | undefined {
  return large === undefined || bytes <= large.bytesMin ? undefined : large.refusal(subject, exchange);
}

/** Refuses the request, at the time for which the fault asks, and drops what is left of its body. */
function refuse<Subject>(
  exchange: Exchange,
  contentLength: number,
  fault: Fault,
  subject: Subject,
  { onRefused, refusals, skipped }: BodyRules<Subject>,
): void {
  const rest = skipped.skip(exchange, contentLength);
  refusals.hold(exchange, fault, () => {
    onRefused?.(fault, subject, exchange);
    rest.answer(faultAnswer(fault));
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

interface GatheredDeps<Subject> {
  exchange: Exchange;
  contentLength: number;
  subject: Subject;
  rules: BodyRules<Subject>;
  receive: (body: Buffer) => void;
}

const noBytes = Buffer.alloc(0);

class GatheredBody<Subject> {
  readonly #deps: GatheredDeps<Subject>;
  #held: Held;
  #bytes: Buffer = noBytes;
  #length = 0;
  #isPending = false;

  constructor(deps: GatheredDeps<Subject>) {
    this.#deps = deps;
    const { exchange, rules } = deps;
    this.#held = rules.room.ofStranger(exchange.remoteAddress());
    const release = (): void => this.#held.release();
    exchange.releaseBody = release;
  }

  /** Reads no further until the sender is known. */
  admit(sender: () => string | Promise<string>): void {
    const { exchange } = this.#deps;
    try {
      const name = sender();
      if (typeof name === 'string') {
        this.#belongTo(name);
        return;
      }
      this.#isPending = true;
      // After `pause` the library still passes on what it has already read. When that includes the end of the body,
      // `resume` starts a timer of ten seconds that nothing ends, and the connection is closed while the handler works.
      // So the pause waits until the pieces of this turn are known.
      setImmediate(() => {
        if (this.#isPending && !exchange.isBodyWhole && exchange.skipped === undefined) exchange.pause();
      });
      name.then(
        (known) => this.#admitted(known),
        (error: unknown) => this.#refuseSender(error),
      );
    } catch (error) {
      this.#refuseSender(error);
    }
  }

  add(chunk: ArrayBuffer, isLast: boolean): void {
    const { exchange, contentLength, subject, rules } = this.#deps;
    const { bytesMax } = rules;
    if (exchange.done || exchange.skipped !== undefined) return;
    const total = this.#length + chunk.byteLength;
    if (total > bytesMax) {
      this.#refuse(bodyTooLarge(bytesMax));
      return;
    }
    if (total > this.#bytes.length) {
      const fault = refusalOfLarge(exchange, total, subject, rules);
      if (fault !== undefined) {
        this.#refuse(fault);
        return;
      }
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
    if (isLast && !this.#isPending) this.#finish();
  }

  #admitted(name: string): void {
    const { exchange } = this.#deps;
    this.#isPending = false;
    if (exchange.done || exchange.skipped !== undefined || !this.#belongTo(name)) return;
    exchange.resume();
    if (exchange.isBodyWhole) this.#finish();
  }

  /** Moves the received bytes to the share of the sender. */
  #belongTo(name: string): boolean {
    const { exchange, rules } = this.#deps;
    const { bytes } = this.#held;
    this.#held.release();
    this.#held = rules.room.ofSender(name, exchange.remoteAddress());
    if (this.#held.grow(bytes)) return true;
    this.#refuse(bodiesInFlight());
    return false;
  }

  #finish(): void {
    const { exchange, receive } = this.#deps;
    passOwnBody(exchange, this.#bytes.subarray(0, this.#length), receive);
  }

  #refuseSender(error: unknown): void {
    if (this.#deps.exchange.skipped === undefined) this.#refuse(asFault(error));
  }

  #refuse(fault: Fault): void {
    const { exchange, contentLength, subject, rules } = this.#deps;
    this.#bytes = noBytes;
    this.#held.release();
    if (!exchange.done) refuse(exchange, contentLength, fault, subject, rules);
  }
}

export function bodiesInFlight(): Fault {
  return unavailable('bodies_in_flight', 'Too many large requests at once; send this one again.');
}

function bodyTooLarge(bytesMax: number): Fault {
  return tooLarge('body_too_large', `Payload size exceeds the limit of ${bytesMax} bytes`);
}
