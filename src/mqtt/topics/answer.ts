/**
 * Sends an answer to the client that made the request, whether or not it subscribed to the topic, with the QoS of its
 * subscription.
 */
import { tooLarge } from '../../base/errors.ts';
import type { Session } from '../session/session.ts';

/** Sends the answer; returns false when the client accepts no packet of that size. A client that is gone gets none. */
export function trySendAnswer(session: Session, topic: string, payload: string | Uint8Array): boolean {
  return session.push(topic, payload, session.subscriptions.qosOf(topic)) || session.isGone;
}

/** Sends the answer; throws when the client accepts no packet of that size. */
export function sendAnswer(session: Session, topic: string, payload: string | Uint8Array): void {
  if (trySendAnswer(session, topic, payload)) return;
  throw tooLarge('answer_too_large', 'The answer is larger than the Maximum Packet Size of your CONNECT.');
}
