/**
 * Commands and updates for a client whose transport has closed while its last messages wait for their turn: none is
 * accepted, so another session gets the command, and the update is sent again.
 */
import { expect, test } from 'vitest';
import type { Follower } from '../../attributes/followers.ts';
import type { Update } from '../../attributes/update.ts';
import type { Log } from '../../base/log.ts';
import type { RpcSession } from '../../rpc/sessions.ts';
import type { Session } from '../session/session.ts';
import { AttributeStream, type AttributeStreamDeps } from './attributes.ts';
import { MqttGatewayLink } from './gateway-link.ts';
import { RpcStream } from './rpc.ts';

const update: Update = { kind: 'changes', version: 1, json: '{"a":1,"b":2}' };
const command = { id: 1, method: 'm', params: '{}', confirm: true };
const never = () => expect.unreachable();
const log = { warn: never } as unknown as Log;

const gone = {
  isGone: true,
  endedBy: undefined,
  device: { id: 'd', number: 1 },
  subscriptions: { topicOf: () => 'v1/devices/me/attributes', qosOf: () => 1 },
  push: () => false,
} as unknown as Session;

test('a command is not taken, and does not fail', () => {
  let listener: RpcSession | undefined;
  const listen = (_: number, each: RpcSession) => {
    listener = each;
    return () => {};
  };
  new RpcStream({ listen } as unknown as ConstructorParameters<typeof RpcStream>[0]).start(gone);
  expect(listener!.deliver(command, never)).toBe(false);
  expect(new MqttGatewayLink(gone, log, true).rpc('child', command, never)).toBe(false);
});

test('an update is not confirmed, and is no update that is too large', () => {
  let follower: Follower | undefined;
  const follow = (_: number, each: Follower) => {
    follower = each;
    return { leave() {}, ask() {}, confirmed: never };
  };
  new AttributeStream({ updates: { follow }, log } as unknown as AttributeStreamDeps).start(gone);
  follower!.update(update);
  expect(new MqttGatewayLink(gone, log, true).attributes('child', update, never)).toBe(false);
});
