/** When a connection is paused during the look-up of a sender. The test takes the place of the library. */
import { setImmediate as turn } from 'node:timers/promises';
import { expect, test } from 'vitest';
import { BodyRoom, type BodyRules, readBody } from './body.ts';
import type { Exchange } from './exchange.ts';
import type { HeldRefusals } from './held-refusals.ts';
import type { SkippedBodies } from './skipped-bodies.ts';

/** A request whose body the test passes on. */
class Request {
  readonly calls: string[] = [];
  receive: (chunk: ArrayBuffer, isLast: boolean) => void = () => {};
  isBodyWhole = false;
  done = false;
  skipped: undefined;
  releaseBody: unknown;
  ownBody: unknown;

  onData(receive: (chunk: ArrayBuffer, isLast: boolean) => void) {
    this.receive = receive;
  }
  pause() {
    this.calls.push('pause');
  }
  resume() {
    this.calls.push('resume');
  }
  remoteAddress() {
    return '192.0.2.1';
  }
}

/** Begins to read the body of a request whose sender is looked up until `found` is called. */
function begin() {
  const request = new Request();
  let found = () => {};
  const sender = new Promise<string>((resolve) => (found = () => resolve('device 1')));
  const rules: BodyRules<string> = {
    ...{ bytesMax: 1_000, room: new BodyRoom(1_000_000), admit: () => sender },
    ...{ refusals: {} as HeldRefusals, skipped: {} as SkippedBodies },
  };
  rules.room.mayHold(1_000);
  readBody(request as unknown as Exchange, 20, 'a', rules, (body) => request.calls.push(`${body.length} bytes`));
  return { request, found };
}

test('after a body that the library had read whole the connection is not paused: its timer would close it', async () => {
  const { request, found } = begin();
  request.receive(new ArrayBuffer(10), false);
  request.receive(new ArrayBuffer(10), true);
  await turn();
  expect(request.calls).toEqual([]);
  found();
  await turn();
  expect(request.calls).toEqual(['resume', '20 bytes']);
});

test('a connection is paused from the end of the turn until the sender is known, while more of the body is to come', async () => {
  const { request, found } = begin();
  request.receive(new ArrayBuffer(10), false);
  await turn();
  expect(request.calls).toEqual(['pause']);
  found();
  await turn();
  request.receive(new ArrayBuffer(10), true);
  expect(request.calls).toEqual(['pause', 'resume', '20 bytes']);
});
