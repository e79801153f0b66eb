/** The connection of a gateway, as its children use it. A door supplies it. */

import type { Update } from '../attributes/update.ts';
import type { SessionEnd } from '../downlink/sessions.ts';
import type { RpcRequest } from '../rpc/rpc.ts';
import type { ConfirmRpc } from '../rpc/sessions.ts';

/** The reason why a child is no longer routed, or was refused. */
export type Dropped = Exclude<SessionEnd, 'credentials_changed'> | 'rate_limit' | 'out_of_scope';

/** Sends to a gateway. */
export interface GatewayLink {
  readonly remoteAddress?: string;
  /** True: `confirm` is called once, now or later. False: the gateway did not take the update. */
  attributes(name: string, update: Update, confirm: (delivered: boolean) => void): boolean;
  /** Same contract as `RpcSession.deliver`. */
  rpc(name: string, request: RpcRequest, confirm: ConfirmRpc): boolean;
  /** Notifies the gateway that a child is no longer routed, or was refused. */
  dropped(name: string, reason: Dropped): void;
}
