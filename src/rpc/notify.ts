/**
 * What a door knows of commands to devices: a session of the device (long poll, MQTT connection, gateway child) listens
 * and is given each command by at most one call of `deliver`, with a way to say whether it reached the device.
 */
import type { CloseReason, Downlink } from '../device/downlink.ts';
import type { Climb, RpcRequest } from './rpc.ts';

export interface RpcSession {
  /**
   * True takes the command: no other session gets it. Then call `confirm` once: true when the device has it (answer
   * written, PUBACK), false when it cannot have got it: another session will be offered it.
   */
  deliver(request: RpcRequest, confirm: (delivered: boolean) => void): boolean;
  close(reason: CloseReason): void;
}

export class RpcSessions {
  readonly #downlink: Downlink;

  constructor(downlink: Downlink) {
    this.#downlink = downlink;
  }

  /** Commands that wait are offered at once, the oldest first. The result ends it. */
  listen(device: number, session: RpcSession): () => void {
    return this.#downlink.listen(device, 'rpc', {
      receive: (message) => {
        const request = message as RpcRequest;
        return session.deliver(request, (delivered) => this.#confirm(device, request, delivered));
      },
      close: (reason) => session.close(reason),
    });
  }

  /** A command that nobody wrote down is known to be delivered when it is taken. */
  #confirm(device: number, { id, confirm }: RpcRequest, delivered: boolean): void {
    if (delivered && !confirm) return;
    this.#downlink.send(device, 'rpc-climb', { kind: 'confirm', id, delivered } satisfies Climb);
  }
}
