/**
 * One HTTP request and its answer: guards against a disconnect, writes the answer, turns a fault into a status. An
 * answer may be sent after the handler has returned (after the journal's sync). So every write is corked, and nothing
 * is written after a disconnect.
 */
import type { HttpResponse as UwsResponse } from 'uWebSockets.js';
import { systemClock } from '../base/clock.ts';
import { assert, Fault, unavailable } from '../base/errors.ts';
import { limits } from '../base/limits.ts';
import { networkOf } from '../base/network.ts';
import { type PlaceOwner, Places } from '../base/places.ts';
import { clientAddress, peerOf, requesterOf } from './client-address.ts';
import { inSlices, type SlicedBody, type SliceOutcome, SliceSender, streams } from './slices.ts';

export interface Answer {
  status: number;
  contentType?: string;
  headers?: Record<string, string>;
  body?: string | Buffer | SlicedBody;
  /**
   * The owners of an answer that changed nothing: a long body then holds room until its reader has taken it, and is
   * refused where there is none. A body in slices names its own.
   */
  owners?: readonly PlaceOwner[];
}

/** The rest of the body of a refused request. */
interface SkippedRest {
  /** Called for each piece. */
  received(): void;
  /** Called when the client has disconnected. */
  end(): void;
}

const statusText: Record<number, string> = {
  200: '200 OK',
  201: '201 Created',
  202: '202 Accepted',
  204: '204 No Content',
  302: '302 Found',
  304: '304 Not Modified',
  400: '400 Bad Request',
  401: '401 Unauthorized',
  403: '403 Forbidden',
  404: '404 Not Found',
  405: '405 Method Not Allowed',
  406: '406 Not Acceptable',
  408: '408 Request Timeout',
  409: '409 Conflict',
  413: '413 Payload Too Large',
  415: '415 Unsupported Media Type',
  426: '426 Upgrade Required',
  429: '429 Too Many Requests',
  431: '431 Request Header Fields Too Large',
  500: '500 Internal Server Error',
  503: '503 Service Unavailable',
  504: '504 Gateway Timeout',
};

/** What the server adds to each answer, and the proxies in front of it. */
export interface ServerHeaders {
  /** The name of the worker; '' = no header. */
  worker: string;
  /** `Strict-Transport-Security`; '' = no header. */
  transportSecurity: string;
  isTrustedProxy: (address: string) => boolean;
}

const noHeaders: ServerHeaders = { worker: '', transportSecurity: '', isTrustedProxy: () => false };

export class Exchange {
  readonly #res: UwsResponse;
  /** `Origin` of the request, '' without one: browsers then get CORS headers. */
  readonly #origin: string;
  readonly #headOnly: boolean;
  readonly #server: ServerHeaders;
  aborted = false;
  answered = false;
  /** True: the rest of the request is not read, and the socket is closed after the answer. */
  closeAfter = false;
  onAbort: (() => void) | undefined = undefined;
  /**
   * A body that arrived in pieces, while it is passed on. It has its own memory, unlike a body that arrived in one
   * piece.
   */
  ownBody: Buffer | undefined = undefined;
  /** Releases the room of a body in pieces, while it is read and until a handler keeps it (`keepBody`). */
  releaseBody: (() => void) | undefined = undefined;
  /** True: the last piece of the body has arrived. */
  isBodyWhole = false;
  /** The rest of the body of a refused request; undefined while the body is read. */
  skipped: SkippedRest | undefined = undefined;
  /** Called once, when the request is answered or its client has disconnected. */
  onDone: (() => void) | undefined = undefined;
  /** The receipt of the message, a header of its acknowledgement; '' until it is made, undefined unless asked for. */
  receipt: string | undefined = undefined;
  /** `X-Forwarded-For` of the request; '' without one. */
  forwardedFor = '';
  /**
   * True: the connection takes this request only, because its client's address is that of a PROXY header. A client
   * behind a proxy that passes bytes on unread could send another such header before its next request.
   */
  #isOnly = false;
  /**
   * True in each turn of the event loop in which a piece of the only request arrived. An answer waits for the next
   * turn: the library cuts a connection whose next request, in the same piece, arrives before the answer.
   */
  #isEarly = false;
  /** The answer that waits for the next turn. */
  #early: Answer | undefined = undefined;
  /** Resolves with the outcome of an answer that is sent in slices. */
  sent: Promise<SliceOutcome> | undefined = undefined;
  #sender: SliceSender | undefined = undefined;
  #isPaused = false;

  constructor(res: UwsResponse, origin: string, headOnly: boolean, server = noHeaders) {
    this.#res = res;
    this.#origin = origin;
    this.#headOnly = headOnly;
    this.#server = server;
    res.onAborted(() => {
      this.aborted = true;
      this.releaseBody?.();
      this.skipped?.end();
      this.#sender?.abort();
      this.onAbort?.();
      if (!this.answered) this.onDone?.();
    });
  }

  get done(): boolean {
    return this.aborted || this.answered || this.#early !== undefined;
  }

  /** Called for a request with a PROXY header. */
  takeOneRequest(): void {
    this.#isOnly = true;
    this.closeAfter = true;
    this.#holdAnswer();
  }

  /** Holds an answer until the next turn of the event loop. */
  #holdAnswer(): void {
    if (this.#isEarly) return;
    this.#isEarly = true;
    setImmediate(() => {
      this.#isEarly = false;
      const answer = this.#early;
      this.#early = undefined;
      if (answer) this.answer(answer);
    });
  }

  /** Resolves when an answer would leave at once. */
  mayAnswer(): Promise<void> | undefined {
    return this.#isEarly ? new Promise((resolve) => setImmediate(resolve)) : undefined;
  }

  /** Sends 200 with an empty body: the acknowledgement of the device API, and the only answer on the hot path. */
  acknowledge(): void {
    if (this.done) return;
    if (this.receipt) {
      this.answer({ status: 200, headers: receiptHeaders(this.receipt) });
      return;
    }
    if (this.#origin !== '' || this.#server.worker !== '' || this.#isOnly) {
      this.answer({ status: 200 });
      return;
    }
    this.answered = true;
    assert(corked === undefined, 'one answer is corked at a time');
    corked = this.#res;
    corked.cork(endEmpty);
    this.onDone?.();
  }

  answer(answer: Answer): void {
    if (this.#isEarly && !this.done) {
      this.#early = answer;
      return;
    }
    const { body = '' } = answer;
    const isSliced = typeof body === 'object' && 'bytes' in body;
    if (isSliced && !this.done && !this.#headOnly) {
      this.#stream(answer, body);
      return;
    }
    if (!isSliced && answer.owners && body.length > limits.unsentAnswerBytesMin && !this.done && !this.#headOnly) {
      this.#sendLong(answer, typeof body === 'string' ? Buffer.from(body) : body, answer.owners);
      return;
    }
    if (this.#isOnly && !isSliced && body.length > onlyAnswerBytesMax && !this.done && !this.#headOnly) {
      // The library reads the next request while its copy of an answer waits for the reader.
      const bytes = typeof body === 'string' ? Buffer.from(body) : body;
      this.#answerInSlices(answer, inSlices(bytes), this.#addressOwners(), () => {});
      return;
    }
    if (isSliced) body.release?.();
    if (this.done) return;
    this.answered = true;
    const res = this.#res;
    res.cork(() => {
      this.#writeHead(answer);
      if (!this.#headOnly) {
        res.end(body as string | Buffer, this.closeAfter);
        return;
      }
      // The library waits for a body whose length it wrote itself: such a connection is never idle. Without that length
      // the library cannot close the connection: the client or the idle timeout does.
      const bytes = isSliced ? body.bytes : Buffer.byteLength(body);
      if (this.#isOnly) {
        const closesConnection = true;
        res.endWithoutBody(bytes, closesConnection);
        return;
      }
      res.writeHeader('Content-Length', String(bytes));
      if (this.closeAfter) res.writeHeader('Connection', 'close');
      res.endWithoutBody();
    });
    this.onDone?.();
  }

  /** A message that the journal has is refused while ClickHouse is slow (`INGEST_ACK=store`): it has a receipt. */
  refuse(fault: Fault): void {
    const answer = faultAnswer(fault);
    if (this.receipt) answer.headers = { ...answer.headers, ...receiptHeaders(this.receipt) };
    this.answer(answer);
  }

  /**
   * Answers while the body still arrives. After `end` the library would close the connection of a client that asked for
   * its close, whose bytes are still on the way. Any other connection would have no idle timeout after its body. So the
   * response is not ended, and the caller must call `closeEarly`. The library has no call for bytes alone: the body of
   * the answer follows the last header, and the line end that the library adds is its last two bytes.
   */
  answerEarly(answer: Answer): void {
    if (this.done) return;
    this.answered = true;
    const body = String(answer.body ?? '');
    const hasBody = body !== '' && !this.#headOnly;
    const length = Buffer.byteLength(body) + (body === '' ? 0 : 2);
    const res = this.#res;
    res.cork(() => {
      this.#writeHead(answer);
      res.writeHeader('Date', new Date(systemClock.now()).toUTCString());
      res.writeHeader('Connection', 'close');
      res.writeHeader('Content-Length', hasBody ? `${length}\r\n\r\n${body}` : `${length}\r\n`);
    });
    this.onDone?.();
  }

  /** Closes the connection after `answerEarly`. */
  closeEarly(): void {
    if (!this.aborted) this.#res.close();
  }

  /** Closes the connection without an answer: the end of the request is ambiguous. */
  cut(): void {
    if (this.aborted || this.answered) return;
    this.answered = true;
    this.#res.close();
    this.onDone?.();
  }

  /** Receives the body in pieces; a piece is valid during the call only. */
  onData(receive: (chunk: ArrayBuffer, isLast: boolean) => void): void {
    if (!this.#isOnly) {
      this.#res.onData(receive);
      return;
    }
    this.#res.onData((chunk, isLast) => {
      this.#holdAnswer();
      receive(chunk, isLast);
    });
  }

  /** Leaves the rest of the body in the kernel until `resume`. */
  pause(): void {
    if (this.done || this.#isPaused) return;
    this.#isPaused = true;
    this.#res.pause();
  }

  /** A socket that is not paused would never be read again when the library resumes it just before an answer. */
  resume(): void {
    if (this.done || !this.#isPaused) return;
    this.#isPaused = false;
    this.#res.resume();
  }

  /** The address of the client; '' after the answer or a disconnect. */
  remoteAddress(): string {
    if (this.done) return '';
    const { isTrustedProxy } = this.#server;
    const sender = requesterOf(this.#res, isTrustedProxy);
    return clientAddress(sender, this.forwardedFor, isTrustedProxy);
  }

  /** A PROXY header of an untrusted address, which the library has parsed, refuses the request. */
  proxyFault(): Fault | undefined {
    return this.#isOnly && !this.#server.isTrustedProxy(peerOf(this.#res)) ? untrustedProxy : undefined;
  }

  /** True when a trusted proxy sent the request. */
  isFromProxy(): boolean {
    const { isTrustedProxy } = this.#server;
    return isTrustedProxy(requesterOf(this.#res, isTrustedProxy));
  }

  #addressOwners(): PlaceOwner[] {
    return [{ name: `address ${networkOf(this.remoteAddress())}`, timesFree: 3 }];
  }

  #stream(answer: Answer, body: SlicedBody): void {
    const owners = body.owners ?? this.#addressOwners();
    const outcome = streams.take(owners);
    if (outcome === 'taken') {
      this.#answerInSlices(answer, body, owners, () => streams.release(owners));
      return;
    }
    body.release?.();
    this.refuse(outcome === 'full' ? streamsFull : streamsShare);
  }

  /** The library would copy what the reader does not take, without a cap. */
  #sendLong(answer: Answer, body: Buffer, owners: readonly PlaceOwner[]): void {
    const { length } = body;
    if (unsentBytes.take(owners, length) === 'taken') {
      this.#answerInSlices(answer, inSlices(body), owners, () => unsentBytes.release(owners, length));
    } else {
      this.refuse(unsentFull);
    }
  }

  /** `release` is called when the answer has ended. */
  #answerInSlices(answer: Answer, body: SlicedBody, owners: readonly PlaceOwner[], release: () => void): void {
    this.answered = true;
    const sender = new SliceSender(this.#res, body, owners, this.#isOnly);
    this.#sender = sender;
    this.sent = sender
      .run(() => {
        this.#writeHead(answer);
        if (this.#isOnly) this.#res.writeHeader('Connection', 'close');
      })
      .finally(() => {
        release();
        body.release?.();
        this.onDone?.();
      });
  }

  #writeHead(answer: Answer): void {
    const res = this.#res;
    res.writeStatus(statusText[answer.status] ?? String(answer.status));
    if (this.#origin !== '') writeCors(res, this.#origin);
    const { worker, transportSecurity } = this.#server;
    if (worker !== '') res.writeHeader('x-millrace-worker', worker);
    if (transportSecurity !== '') res.writeHeader('Strict-Transport-Security', transportSecurity);
    if (answer.contentType) {
      res.writeHeader('Content-Type', answer.contentType);
      res.writeHeader('X-Content-Type-Options', 'nosniff');
    }
    for (const name in answer.headers) res.writeHeader(name, answer.headers[name]!);
  }
}

/** Bytes that the kernel takes at once as the first answer of a connection. */
const onlyAnswerBytesMax = 4096;

/** Bytes of long answers with owners that their readers have not taken. */
export const unsentBytes = new Places(limits.unsentAnswersBytesMax);
const unsentFull = unavailable('answers_unsent', 'Too many large answers are being made or sent; try again.');
const streamsFull = unavailable('streams', 'Too many large answers are being sent; try again.');
const streamsShare = new Fault(
  'streams_share',
  'You are being sent so many large answers that others would find no place: read those to their end first.',
  1,
);

const untrustedProxy = new Fault(
  'proxy_header',
  'A PROXY header came from an address that TRUSTED_PROXIES does not name.',
);

/** Scripts of another origin may read the receipt, too. */
function receiptHeaders(receipt: string): Record<string, string> {
  return { 'X-Millrace-Receipt': receipt, 'Access-Control-Expose-Headers': 'X-Millrace-Receipt' };
}

// One function for all acknowledgements avoids a closure for each.
let corked: UwsResponse | undefined;
function endEmpty(): void {
  const res = corked!;
  corked = undefined;
  res.end();
}

/** Makes the JSON of a fault, the only form of an error (docs/rest.md#errors). */
export function faultAnswer(fault: Fault): Answer {
  const body = JSON.stringify({
    status: fault.status,
    message: fault.message,
    errorCode: fault.errorCode,
    timestamp: systemClock.now(),
    ...fault.members,
  });
  const answer: Answer = { status: fault.status, contentType: 'application/json', body };
  if (fault.retryAfterSeconds > 0) answer.headers = { 'Retry-After': String(fault.retryAfterSeconds) };
  return answer;
}

/** Allows reads from any origin, without credentials that a browser adds: tokens are in headers. */
function writeCors(res: UwsResponse, origin: string): void {
  res.writeHeader('Access-Control-Allow-Origin', origin);
  res.writeHeader('Vary', 'Origin');
}
