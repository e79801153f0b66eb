/** Sends updates and commands for the children of a gateway on the gateway's own topics (docs/mqtt.md#gateways). */
import type { Update } from '../../attributes/update.ts';
import type { Log } from '../../base/log.ts';
import type { Dropped, GatewayLink } from '../../gateway/link.ts';
import type { RpcRequest } from '../../rpc/rpc.ts';
import type { ConfirmRpc } from '../../rpc/sessions.ts';
import type { Session } from '../session/session.ts';
import { splitUpdate } from './attributes.ts';

const attributesTopic = 'v1/gateway/attributes';
const rpcTopic = 'v1/gateway/rpc';
export const disconnectTopic = 'v1/gateway/disconnect';

/** Codes in the notice that a child is no longer routed: reason codes of MQTT 5, in decimal. */
const noticeReasons: Record<Dropped, number> = {
  out_of_scope: 135,
  taken_over: 142,
  rate_limit: 150,
  device_deleted: 152,
};

export class MqttGatewayLink implements GatewayLink {
  readonly #session: Session;
  readonly #log: Log;
  readonly #sendsNotices: boolean;

  constructor(session: Session, log: Log, disconnectNotices: boolean) {
    this.#session = session;
    this.#log = log;
    this.#sendsNotices = disconnectNotices && session.level === 5;
  }

  get remoteAddress(): string {
    return this.#session.remoteAddress;
  }

  attributes(name: string, update: Update, confirm: (delivered: boolean) => void): boolean {
    if (this.#push(attributesTopic, withDevice(name, update.json), confirm)) return true;
    if (this.#session.isGone) return false;
    // The update is above the client's Maximum Packet Size: its parts may fit.
    let open = 1;
    let isDelivered = true;
    const arrived = (delivered: boolean): void => {
      open -= 1;
      isDelivered &&= delivered;
      if (open === 0) confirm(isDelivered);
    };
    for (const part of splitUpdate(update)) {
      open += 1;
      if (this.#push(attributesTopic, withDevice(name, part), arrived)) continue;
      open -= 1;
      const { id } = this.#session.device;
      this.#log.warn('attribute_update_too_large', { gateway: id, child: name, chars: part.length });
    }
    arrived(!this.#session.isGone);
    return true;
  }

  rpc(name: string, { id, method, params }: RpcRequest, confirm: ConfirmRpc): boolean {
    const payload = withDevice(name, `{"id":${id},"method":${JSON.stringify(method)},"params":${params}}`);
    if (this.#push(rpcTopic, payload, (delivered) => confirm(delivered))) return true;
    if (this.#session.isGone) return false;
    // A command that is not ended here would block all later ones.
    confirm(false, 'The command is larger than the Maximum Packet Size that the gateway gave when it connected.');
    return true;
  }

  dropped(name: string, reason: Dropped): void {
    if (!this.#sendsNotices) return;
    const notice = `{"device":${JSON.stringify(name)},"reason":${noticeReasons[reason]}}`;
    this.#push(disconnectTopic, notice, undefined);
  }

  #push(topic: string, payload: string, confirm: ((delivered: boolean) => void) | undefined): boolean {
    return this.#session.push(topic, payload, this.#session.subscriptions.qosOf(topic), confirm);
  }
}

function withDevice(name: string, data: string): string {
  return `{"device":${JSON.stringify(name)},"data":${data}}`;
}
