/**
 * Messages to the owner of a command, from the worker of a session, from the worker that got the reply, and from other
 * owners. They use the owners' channel of the device, so every owner of a command of this device receives them.
 */
import { isObject } from '../base/schema.ts';
import { isText, UnreadMessage } from '../bus/messages.ts';
import type { Downlink } from '../downlink/downlink.ts';
import { isRpcId } from './rpc.ts';

export type OwnerMessage =
  | { kind: 'reply'; id: number; text: string }
  | { kind: 'confirm'; id: number; delivered: boolean; error?: string }
  | { kind: 'withdraw'; id: number }
  /**
   * The command waits for a session (`oldest-first.ts`). `isNew`: the other owners must announce their commands.
   * `isAsking`: only those that are older. An earlier version announces all of them.
   */
  | { kind: 'held'; id: number; isNew: boolean; isAsking?: boolean }
  /** A command that was announced no longer waits. */
  | { kind: 'gone'; id: number };

/** The topic on the bus. Hosts of an earlier version use the same name. */
const topic = 'rpc-climb';

export function sendToOwners(downlink: Pick<Downlink, 'send'>, device: number, message: OwnerMessage): void {
  downlink.send(device, topic, message);
}

export function watchOwnerMessages(downlink: Downlink, receive: (device: number, message: OwnerMessage) => void): void {
  downlink.watch(topic, (device, message) => {
    if (!isOwnerMessage(message)) throw new UnreadMessage('another shape');
    receive(device, message);
  });
}

function isOwnerMessage(value: unknown): value is OwnerMessage {
  if (!isObject(value) || !isRpcId(value['id'])) return false;
  const { kind, text, delivered, error, isNew, isAsking } = value;
  switch (kind) {
    case 'reply':
      return isText(text);
    case 'confirm':
      return typeof delivered === 'boolean' && (error === undefined || isText(error));
    case 'held':
      return typeof isNew === 'boolean' && (isAsking === undefined || typeof isAsking === 'boolean');
    default:
      return kind === 'withdraw' || kind === 'gone';
  }
}
