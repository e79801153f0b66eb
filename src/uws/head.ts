/**
 * Reads a request's head in one pass over its headers (each JavaScript call into the library costs about as much as the
 * pass). The pass also refuses heads used for request smuggling. The library takes the first of two Content-Length
 * headers and treats an unknown transfer coding as no body, so the rest would run as a second request. Headers after
 * one without a name are not shown by the library (docs/http.md#errors).
 */
import type { HttpRequest } from 'uWebSockets.js';
import { assert } from '../base/errors.ts';

export interface RequestHead {
  /** Declared length of the body; -1 without one (chunked, or no body). */
  contentLength: number;
  chunked: boolean;
  origin: string;
  /** `X-Forwarded-For`; '' without one. Several headers are one list. */
  forwardedFor: string;
  /** `Content-Encoding`; '' without one. Several headers are one list. */
  encoding: string;
  /** True: the request has the header `X-Millrace-Receipt: true`. */
  wantsReceipt: boolean;
  /** Characters of all long header values together. */
  longChars: number;
  /**
   * False: the connection must be closed without an answer, which a client could take for the answer to another
   * request.
   */
  sound: boolean;
}

export function hasBody({ contentLength, chunked }: Readonly<RequestHead>): boolean {
  return contentLength > 0 || chunked;
}

// Filled by the callback below and read at once: a closure for each request would be garbage.
let isFilling = false;
const head: RequestHead = {
  contentLength: -1,
  chunked: false,
  origin: '',
  forwardedFor: '',
  encoding: '',
  wantsReceipt: false,
  longChars: 0,
  sound: true,
};

/** Shorter values are not counted: the library accepts a hundred headers, and each addition costs 40 ns. */
const shortChars = 128;

function readHeader(name: string, value: string): void {
  if (value.length > shortChars) head.longChars += value.length;
  // Compares the length first: most headers are none of these.
  switch (name.length) {
    case 14:
      if (name === 'content-length') {
        if (head.contentLength !== -1 || !/^\d{1,15}$/.test(value)) head.sound = false;
        else head.contentLength = Number(value);
      }
      break;
    case 17:
      if (name === 'transfer-encoding') {
        if (value.toLowerCase() !== 'chunked' || head.chunked) head.sound = false;
        head.chunked = true;
      }
      break;
    case 16:
      if (name === 'content-encoding') head.encoding += head.encoding === '' ? value : `, ${value}`;
      break;
    case 18:
      if (name === 'x-millrace-receipt') head.wantsReceipt = value.toLowerCase() === 'true';
      break;
    case 15:
      if (name === 'x-forwarded-for') head.forwardedFor += head.forwardedFor === '' ? value : `,${value}`;
      break;
    case 6:
      if (name === 'origin') head.origin = value;
      break;
  }
}

/** The result is valid until the next call. */
export function readHead(req: HttpRequest): Readonly<RequestHead> {
  assert(!isFilling, 'one head is read at a time');
  isFilling = true;
  head.contentLength = -1;
  head.chunked = false;
  head.origin = '';
  head.forwardedFor = '';
  head.encoding = '';
  head.wantsReceipt = false;
  head.longChars = 0;
  head.sound = true;
  req.forEach(readHeader);
  isFilling = false;
  if (head.chunked && head.contentLength !== -1) head.sound = false;
  return head;
}
