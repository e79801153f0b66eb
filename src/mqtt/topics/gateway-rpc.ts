/**
 * Takes replies of a gateway's devices to commands on `v1/gateway/rpc`. The caller gets `data` byte for byte. A reply
 * for a device that is not connected through this gateway is acknowledged and dropped.
 */
import type { Admission } from '../../activity/admission.ts';
import { readReply } from '../../gateway/requests.ts';
import type { Rpc } from '../../rpc/send.ts';
import type { ReadBody } from '../../value/lenient.ts';
import { run } from '../session/operation.ts';
import type { GatewaySessions } from './gateway-sessions.ts';
import type { TopicEntries } from './table.ts';

export interface GatewayRpcDeps {
  admission: Admission;
  rpc: Rpc;
  readBody: ReadBody;
}

export function gatewayRpcTopics(
  sessions: GatewaySessions,
  { admission, rpc, readBody }: GatewayRpcDeps,
): TopicEntries {
  return {
    exact: {
      'v1/gateway/rpc': (publish) => {
        const { session, payload } = publish;
        const reply = readBody(payload, readReply);
        admission.childMessage(session.device);
        const gateway = sessions.of(session);
        const take = () => {
          const child = gateway.child(reply.device);
          if (!child) {
            publish.acknowledge();
            return;
          }
          admission.touch(child.device);
          run(publish, () => rpc.reply(child.device, reply.id, reply.data));
        };
        // Such a reply does not wait for the messages of other devices.
        if (gateway.child(reply.device)) {
          take();
          return;
        }
        // A connect of the device may be in progress.
        const release = sessions.gateways.hold(gateway.device, payload.length);
        gateway.run([], () => {
          release();
          take();
        });
      },
    },
  };
}
