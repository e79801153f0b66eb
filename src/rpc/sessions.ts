/**
 * The interface between doors and commands to devices. A session of the device (long poll, MQTT connection, gateway
 * child) listens and gets each command by at most one call of `deliver`, with a callback that confirms the delivery.
 */
import { limits } from '../base/limits.ts';
import { type Scheduler, systemScheduler } from '../base/scheduler.ts';
import { UnreadMessage } from '../bus/messages.ts';
import type { Downlink, ListenerCloseReason } from '../downlink/downlink.ts';
import { type OwnerMessage, sendToOwners } from './owner-messages.ts';
import { isRpcRequest, type RpcRequest } from './rpc.ts';

/**
 * Reports once what happened to a command that a session took. True: the device has the command (answer written,
 * PUBACK). False: the device does not have the command, which is offered again. With an `error` the command fails.
 */
export type ConfirmRpc = (delivered: boolean, error?: string) => void;

export interface RpcSession {
  /**
   * True takes the command: no other session gets it. A command without a confirmation in time counts as undelivered.
   */
  deliver(request: RpcRequest, confirm: ConfirmRpc): boolean;
  close(reason: ListenerCloseReason): void;
}

export class RpcSessions {
  readonly #downlink: Downlink;
  readonly #scheduler: Scheduler;

  constructor(downlink: Downlink, scheduler = systemScheduler) {
    this.#downlink = downlink;
    this.#scheduler = scheduler;
  }

  /** Offers waiting commands at once, the oldest first. The returned function ends the listening. */
  listen(device: number, session: RpcSession): () => void {
    return this.#downlink.listen(device, 'rpc', {
      receive: (message) => {
        if (!isRpcRequest(message)) throw new UnreadMessage('another shape');
        const request: RpcRequest = message;
        let isConfirmed = false;
        let stopWait = () => {};
        const confirm: ConfirmRpc = (delivered, error) => {
          if (isConfirmed) return;
          isConfirmed = true;
          stopWait();
          this.#confirm(device, request, delivered, error);
        };
        const isTaken = session.deliver(request, confirm);
        if (isTaken && !isConfirmed) stopWait = this.#scheduler.after(limits.rpcConfirmMs, () => confirm(false));
        return isTaken;
      },
      close: (reason) => session.close(reason),
    });
  }

  /** A caller that waits for a reply needs no confirmation of the delivery. */
  #confirm(device: number, { id, confirm }: RpcRequest, delivered: boolean, error: string | undefined): void {
    if (delivered && !confirm) return;
    const message: OwnerMessage = { kind: 'confirm', id, delivered };
    sendToOwners(this.#downlink, device, error === undefined ? message : { ...message, error });
  }
}
