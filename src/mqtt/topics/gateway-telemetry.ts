/**
 * `v1/gateway/telemetry`: one message with many devices and one acknowledgement, sent when all rows are durable.
 * Usually all devices are known and the message is handled at once. A message with a new name is copied and waits until
 * the device exists. A large message is decoded in a thread (`gateway-large-telemetry.ts`).
 */
import { Fault } from '../../base/errors.ts';
import { limits } from '../../base/limits.ts';
import { systemScheduler } from '../../base/scheduler.ts';
import { childLost } from '../../gateway/child-faults.ts';
import type { Gateway } from '../../gateway/gateway.ts';
import { childrenOf, type GatewayDecoder, GatewayTelemetry, unknownChild } from '../../gateway/telemetry.ts';
import { isJournalRefusal } from '../../ingest/refusals.ts';
import type { ReadBody } from '../../value/lenient.ts';

import { type LargeTelemetryDeps, takeLargeTelemetry } from './gateway-large-telemetry.ts';
import type { GatewaySessions } from './gateway-sessions.ts';
import type { TopicEntries } from './table.ts';

export interface GatewayTelemetryDeps extends LargeTelemetryDeps {
  gatewayDecoder: GatewayDecoder;
  readBody: ReadBody;
}

export function gatewayTelemetryTopics(sessions: GatewaySessions, deps: GatewayTelemetryDeps): TopicEntries {
  const { gateways } = sessions;
  const {
    ingest,
    admission,
    gatewayDecoder: { decode },
    readBody,
  } = deps;

  /** Returns false when the message must wait. */
  const isAccepted = (gateway: Gateway, message: GatewayTelemetry, payload: Buffer): boolean => {
    try {
      const { device } = gateway;
      const points = ingest.accept(decode, payload, message, message, undefined, device);
      gateway.journalWait.end();
      admission.accepted(device, points);
      return true;
    } catch (error) {
      if (error === unknownChild) return false;
      throw error;
    }
  };

  return {
    bytesMax: { 'v1/gateway/telemetry': Number.POSITIVE_INFINITY },
    exact: {
      'v1/gateway/telemetry': (publish) => {
        const gateway = sessions.of(publish.session);
        const message = new GatewayTelemetry(gateway, publish);
        admission.admitGateway(gateway.device);
        if (publish.payload.length > limits.decodeInLoopBytesMax) {
          const { payload, release } = gateways.keep(publish, gateway.device);
          gateway.run([], () => takeLargeTelemetry(deps, gateway, publish, payload).then(release));
          return;
        }
        // A message after waiting ones waits too, so that points of a device keep their order.
        if (!gateway.isBusy && isAccepted(gateway, message, publish.payload)) return;
        const wanted = readBody(publish.payload, childrenOf);
        const { payload, release } = gateways.keep(publish, gateway.device);
        /** Returns false when the journal refuses and there is time to wait. */
        const isDone = (): boolean => {
          try {
            if (!isAccepted(gateway, message, payload)) publish.refuse(childLost);
          } catch (error) {
            if (!(error instanceof Fault)) throw error;
            if (isJournalRefusal(error) && gateway.journalWait.mayWait()) return false;
            publish.refuse(error);
          }
          release();
          return true;
        };
        // The bytes are read already and cannot stay in the socket: later messages of the gateway wait as well.
        const takeLater = async (): Promise<void> => {
          do await systemScheduler.sleep(limits.mqttJournalCheckMs);
          while (!isDone());
        };
        gateway.run(wanted, (refused) => {
          message.refused = refused;
          return isDone() ? undefined : takeLater();
        });
      },
    },
  };
}
