/**
 * Repairs a connection of the NATS client that is given up before the server has said anything, as to a frozen server:
 * `close` of its transport leaves the socket open. Each new try would add a socket, and a command would not end.
 * `connect.ts` calls `destroyAbandonedSockets` once.
 */
import { NodeTransport } from '@nats-io/transport-node/lib/node_transport.js';

export function destroyAbandonedSockets(): void {
  const { close, discard } = NodeTransport.prototype;
  async function closeAll(this: NodeTransport, error?: Error): Promise<void> {
    if (this.connected) return await close.call(this, error);
    discard.call(this);
  }
  NodeTransport.prototype.close = closeAll;
}
