/**
 * Maps the sessions of gateways to their `Gateway`, and serves `v1/gateway/connect` and `…/disconnect`, which begin and
 * end the sessions of children.
 */

import type { Admission } from '../../activity/admission.ts';
import type { Log } from '../../base/log.ts';
import type { Gateway } from '../../gateway/gateway.ts';
import type { Gateways } from '../../gateway/gateways.ts';
import { readChildConnect, readDisconnect } from '../../gateway/requests.ts';
import type { ReadBody } from '../../value/lenient.ts';
import type { Session } from '../session/session.ts';
import { errorsTopic } from './gateway-errors.ts';
import { disconnectTopic, MqttGatewayLink } from './gateway-link.ts';
import type { Streams, TopicEntries } from './table.ts';

interface GatewaySessionsDeps {
  gateways: Gateways;
  disconnectNotices: boolean;
  log: Log;
}

/** Maps a session to its gateway, from the first use of a gateway's topic to the end of the connection. */
export class GatewaySessions {
  readonly gateways: Gateways;
  readonly #deps: GatewaySessionsDeps;
  readonly #of = new Map<Session, Gateway>();

  constructor(deps: GatewaySessionsDeps) {
    this.gateways = deps.gateways;
    this.#deps = deps;
  }

  /** Returns the gateway of the session, which the first call opens. */
  of(session: Session): Gateway {
    return this.#of.get(session) ?? this.#open(session);
  }

  known(session: Session): Gateway | undefined {
    return this.#of.get(session);
  }

  #open(session: Session): Gateway {
    const { gateways, disconnectNotices, log } = this.#deps;
    const gateway = gateways.open(session.device, new MqttGatewayLink(session, log, disconnectNotices));
    this.#of.set(session, gateway);
    session.onEnd(() => {
      this.#of.delete(session);
      gateways.close(gateway);
    });
    return gateway;
  }
}

export function gatewaySessionTopics(
  sessions: GatewaySessions,
  { admission, readBody }: { admission: Admission; readBody: ReadBody },
): TopicEntries {
  return {
    exact: {
      'v1/gateway/connect': (publish) => {
        const { session, payload } = publish;
        const gateway = sessions.of(session);
        const wanted = readBody(payload, readChildConnect);
        admission.childMessage(session.device);
        gateway.run([wanted], (refused) => {
          const fault = refused.get(wanted.name);
          if (fault) publish.refuse(fault);
          else publish.acknowledge();
        });
      },
      'v1/gateway/disconnect': (publish) => {
        const { session, payload } = publish;
        const gateway = sessions.of(session);
        const name = readBody(payload, readDisconnect);
        admission.childMessage(session.device);
        gateway.run([], () => {
          gateway.disconnect(name);
          publish.acknowledge();
        });
      },
    },
    // The notices that a child is no longer routed, and that a message was discarded.
    answers: [disconnectTopic, errorsTopic],
  };
}

/** Updates and commands are sent only to a gateway that subscribed to them. */
export function gatewayStreams(sessions: GatewaySessions): Streams {
  return {
    'gateway-attributes': {
      start: (session) => sessions.of(session).setAttributes(true),
      stop: (session) => sessions.known(session)?.setAttributes(false),
    },
    'gateway-rpc': {
      start: (session) => sessions.of(session).setRpc(true),
      stop: (session) => sessions.known(session)?.setRpc(false),
    },
  };
}
