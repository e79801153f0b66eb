/** The resources of an answer in slices are released at every end, also when none of it is sent. */
import type { HttpResponse as UwsResponse } from 'uWebSockets.js';
import { expect, test } from 'vitest';
import { limits } from '../base/limits.ts';
import { Exchange, unsentBytes } from './exchange.ts';
import { streams } from './slices.ts';

/** A response whose reader takes everything, or disconnects on request. */
class Response {
  readonly statuses: string[] = [];
  /** The bytes that were written in one call. */
  ended = 0;
  #aborted: () => void = () => {};
  #offset = 0;

  onAborted(handler: () => void) {
    this.#aborted = handler;
  }
  cork(write: () => void) {
    write();
  }
  writeStatus(status: string) {
    this.statuses.push(status);
  }
  writeHeader() {}
  onWritable() {}
  end(body: string | Buffer) {
    this.ended = body.length;
  }
  endWithoutBody() {}
  getRemoteAddressAsText() {
    return new TextEncoder().encode('127.0.0.1').buffer;
  }
  getWriteOffset() {
    return this.#offset;
  }
  tryEnd(bytes: Buffer, total: number) {
    this.#offset += bytes.length;
    return [true, this.#offset === total];
  }
  leave() {
    this.#aborted();
  }
}

function exchangeOf(headOnly = false) {
  const response = new Response();
  return { response, exchange: new Exchange(response as unknown as UwsResponse, '', headOnly) };
}

/** Counts how often it is released. */
class Body {
  readonly bytes = 10;
  released = 0;
  slice = async (at: number) => Buffer.alloc(Math.min(5, this.bytes - at));
  release = () => {
    this.released += 1;
  };
}

test('a body is released once when it was sent, when its reader left, and when only its head was asked for', async () => {
  const sent = new Body();
  const whole = exchangeOf();
  whole.exchange.answer({ status: 200, body: sent });
  expect(await whole.exchange.sent).toBe('sent');
  const left = new Body();
  const gone = exchangeOf();
  gone.exchange.answer({ status: 200, body: left });
  gone.response.leave();
  expect(await gone.exchange.sent).toBe('gone');
  const late = new Body();
  gone.exchange.answer({ status: 200, body: late });
  const head = new Body();
  exchangeOf(true).exchange.answer({ status: 200, body: head });
  expect([sent, left, late, head].map(({ released }) => released)).toEqual([1, 1, 1, 1]);
});

test('a body that is refused because too many answers are being sent is released', () => {
  const { response, exchange } = exchangeOf();
  const body = new Body();
  const others = [{ name: 'others', timesFree: 1 }];
  streams.take(others, limits.streamsMax);
  try {
    exchange.answer({ status: 200, body });
  } finally {
    streams.release(others, limits.streamsMax);
  }
  expect([response.statuses, body.released]).toEqual([['503 Service Unavailable'], 1]);
});

test('an owner whose readers are slow leaves a place to the others', async () => {
  const owners = [{ name: 'slow', timesFree: 9 }];
  streams.take(owners, limits.streamsMax - 1);
  try {
    const slow = exchangeOf();
    slow.exchange.answer({ status: 200, body: Object.assign(new Body(), { owners }) });
    expect(slow.response.statuses).toEqual(['429 Too Many Requests']);
    const other = exchangeOf();
    other.exchange.answer({
      status: 200,
      body: Object.assign(new Body(), { owners: [{ name: 'other', timesFree: 9 }] }),
    });
    expect(await other.exchange.sent).toBe('sent');
  } finally {
    streams.release(owners, limits.streamsMax - 1);
  }
  expect(streams.held).toBe(0);
});

test('a long answer to a read holds room until it is sent; without room it is refused, and others find theirs', async () => {
  const owners = [{ name: 'slow', timesFree: 9 }];
  const body = 'x'.repeat(limits.unsentAnswerBytesMin + 1);
  const sent = exchangeOf();
  sent.exchange.answer({ status: 200, body, owners });
  expect(unsentBytes.held).toBe(body.length);
  expect(await sent.exchange.sent).toBe('sent');
  expect(unsentBytes.held).toBe(0);
  const held = 0.9 * limits.unsentAnswersBytesMax;
  unsentBytes.take(owners, held);
  try {
    const refused = exchangeOf();
    refused.exchange.answer({ status: 200, body, owners });
    expect(refused.response.statuses).toEqual(['503 Service Unavailable']);
    const other = exchangeOf();
    other.exchange.answer({ status: 200, body: Buffer.from(body), owners: [{ name: 'other', timesFree: 9 }] });
    expect(await other.exchange.sent).toBe('sent');
    // A change that was made is answered in any case.
    const changed = exchangeOf();
    changed.exchange.answer({ status: 200, body });
    expect([changed.response.statuses, changed.response.ended]).toEqual([['200 OK'], body.length]);
  } finally {
    unsentBytes.release(owners, held);
  }
});
