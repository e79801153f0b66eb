/**
 * An answer down to the client that asked: sent whether it subscribed the topic or not, with the QoS of its
 * subscription.
 */
import { tooLarge } from '../../base/errors.ts';
import type { Session } from '../session.ts';

/** False when the client takes no packet of that size. A session that is over gets no answer and needs none. */
export function isAnswered(session: Session, topic: string, payload: string | Uint8Array): boolean {
  return session.push(topic, payload, session.subscriptions.qosOf(topic)) || session.endedBy !== undefined;
}

/** Throws when the client takes no packet of that size. */
export function sendAnswer(session: Session, topic: string, payload: string | Uint8Array): void {
  if (isAnswered(session, topic, payload)) return;
  throw tooLarge('answer_too_large', 'The answer is larger than the Maximum Packet Size of your CONNECT.');
}
