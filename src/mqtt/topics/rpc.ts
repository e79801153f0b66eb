/**
 * Commands to the signed-in device (docs/mqtt.md#commands-and-calls). Waiting commands are sent at its subscription,
 * the oldest first. A command counts as delivered when the client acknowledged it (QoS 1) or it was written (QoS 0).
 * Replies arrive on `…/rpc/response/{id}`; a reply without a waiting caller is acknowledged as well.
 */

import type { Admission } from '../../activity/admission.ts';
import { badRequest } from '../../base/errors.ts';
import { type RpcRequest, replyText } from '../../rpc/rpc.ts';
import type { Rpc } from '../../rpc/send.ts';
import type { RpcSession, RpcSessions } from '../../rpc/sessions.ts';
import type { ReadBody } from '../../value/lenient.ts';
import { type Operation, run } from '../session/operation.ts';
import type { Session } from '../session/session.ts';
import { forms, idOf } from './families.ts';
import type { Stream, TopicEntries } from './table.ts';

interface RpcTopicsDeps {
  admission: Admission;
  rpc: Rpc;
  readBody: ReadBody;
}

export function rpcTopics({ admission, rpc, readBody }: RpcTopicsDeps): TopicEntries {
  const reply: Operation = (publish, argument) => {
    const { session, payload } = publish;
    const id = idOf(argument);
    if (payload.length === 0) throw badRequest('missing_body', 'A reply must not be empty.');
    admission.count(session.device);
    const text = replyText(payload, readBody);
    admission.touch(session.device);
    run(publish, () => rpc.reply(session.device, id, text));
  };
  const responses = { v1: 'v1/devices/me/rpc/response/', v2: 'v2/r/res/' };
  return { prefixes: forms(responses, responses, () => reply) };
}

export class RpcStream implements Stream {
  readonly #sessions: RpcSessions;
  readonly #leave = new Map<Session, () => void>();

  constructor(sessions: RpcSessions) {
    this.#sessions = sessions;
  }

  start(session: Session): void {
    const listener: RpcSession = {
      deliver: (request, confirm) => deliver(session, request, confirm),
      // `Sessions` ends the session itself.
      close: () => {},
    };
    this.#leave.set(session, this.#sessions.listen(session.device.number, listener));
  }

  stop(session: Session): void {
    this.#leave.get(session)?.();
    this.#leave.delete(session);
  }
}

function deliver(
  session: Session,
  { id, method, params }: RpcRequest,
  confirm: (delivered: boolean, error?: string) => void,
): boolean {
  const { subscriptions } = session;
  const topic = `${subscriptions.topicOf('rpc')}${id}`;
  const payload = `{"method":${JSON.stringify(method)},"params":${params}}`;
  if (session.push(topic, payload, subscriptions.qosOf(topic), (delivered) => confirm(delivered))) return true;
  if (session.isGone) return false;
  // A command that is not ended here would block all later ones.
  confirm(false, 'The command is larger than the Maximum Packet Size that the device gave when it connected.');
  return true;
}
