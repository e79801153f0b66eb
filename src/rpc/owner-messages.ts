/**
 * Messages to the owner of a command, from the worker of a session, from the worker that got the reply, and from other
 * owners. They use the shard channel of the device, so every owner of a command of this device receives them.
 */
import type { Downlink } from '../downlink/downlink.ts';

export type OwnerMessage =
  | { kind: 'reply'; id: number; text: string }
  | { kind: 'confirm'; id: number; delivered: boolean; error?: string }
  | { kind: 'withdraw'; id: number }
  /** This command waits for a session; owners of one device let the oldest go first. A new one asks for the others. */
  | { kind: 'held'; id: number; isNew: boolean }
  | { kind: 'gone'; id: number };

/** The name on the bus. It is kept, because hosts of an earlier version use it. */
const topic = 'rpc-climb';

export function sendToOwners(downlink: Pick<Downlink, 'send'>, device: number, message: OwnerMessage): void {
  downlink.send(device, topic, message);
}

export function watchOwnerMessages(downlink: Downlink, receive: (device: number, message: OwnerMessage) => void): void {
  downlink.watch(topic, (device, message) => receive(device, message as OwnerMessage));
}
