/** The answers of a session about a command that it has received, and an answer that does not arrive in time. */
import { afterEach, beforeEach, expect, test, vi } from 'vitest';
import { limits } from '../base/limits.ts';
import type { Downlink, Listener } from '../downlink/downlink.ts';
import type { OwnerMessage } from './owner-messages.ts';
import type { RpcRequest } from './rpc.ts';
import { type ConfirmRpc, RpcSessions } from './sessions.ts';

const device = 7;
const request: RpcRequest = { id: 3, method: 'm', params: '1', confirm: true };

let sent: OwnerMessage[];
let listener: Listener;
const downlink = {
  listen: (_device: number, _topic: string, added: Listener) => {
    listener = added;
    return () => {};
  },
  send: (_device: number, _topic: string, message: object) => sent.push(message as OwnerMessage),
} as unknown as Downlink;

/** Gives the command to a session that does this with it. */
function deliver(does: (confirm: ConfirmRpc) => boolean, given = request): unknown {
  new RpcSessions(downlink).listen(device, { deliver: (_, confirm) => does(confirm), close: () => {} });
  return listener.receive(given);
}

beforeEach(() => {
  sent = [];
  vi.useFakeTimers();
});

afterEach(() => {
  vi.useRealTimers();
});

test('a session that confirms nothing in time has not delivered the command, even with a later confirmation', () => {
  let late: ConfirmRpc = () => {};
  expect(
    deliver((confirm) => {
      late = confirm;
      return true;
    }),
  ).toBe(true);
  vi.advanceTimersByTime(limits.rpcConfirmMs - 1);
  expect(sent).toEqual([]);
  vi.advanceTimersByTime(1);
  expect(sent).toEqual([{ kind: 'confirm', id: 3, delivered: false }]);
  late(true);
  expect(sent).toHaveLength(1);
});

test('a confirmation is sent once', () => {
  deliver((confirm) => {
    confirm(true);
    confirm(false);
    return true;
  });
  vi.advanceTimersByTime(2 * limits.rpcConfirmMs);
  expect(sent).toEqual([{ kind: 'confirm', id: 3, delivered: true }]);
});

test('a command that is not taken is not waited for', () => {
  expect(deliver(() => false)).toBe(false);
  vi.advanceTimersByTime(2 * limits.rpcConfirmMs);
  expect(sent).toEqual([]);
});

test('without a request for confirmations only failed deliveries are reported', () => {
  deliver(
    (confirm) => {
      confirm(true);
      return true;
    },
    { ...request, confirm: false },
  );
  expect(sent).toEqual([]);
  deliver(
    (confirm) => {
      confirm(false, 'too large');
      return true;
    },
    { ...request, confirm: false },
  );
  expect(sent).toEqual([{ kind: 'confirm', id: 3, delivered: false, error: 'too large' }]);
});
