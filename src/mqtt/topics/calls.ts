/**
 * Calls of the device (docs/mqtt.md#commands-and-calls): acknowledged when they are accepted, answered on
 * `…/rpc/response/{id}` of the same family. Each call has its own timeout; after it, or when a rule fails, the answer
 * is `{"error":"…"}`. This server itself answers `getSessionLimits` on the v1 topic, at once.
 */

import type { Admission } from '../../activity/admission.ts';
import { Fault } from '../../base/errors.ts';
import type { Log } from '../../base/log.ts';
import type { Calls } from '../../rules/calls.ts';
import { type Json, readJson } from '../../value/json.ts';
import type { ReadBody } from '../../value/lenient.ts';
import type { Operation } from '../session/operation.ts';
import type { Session, SessionKind } from '../session/session.ts';
import { sendAnswer, trySendAnswer } from './answer.ts';
import { answerPatterns, forms, idOf } from './families.ts';
import type { TopicEntries } from './table.ts';

interface CallTopicsDeps {
  admission: Admission;
  calls: Calls;
  readBody: ReadBody;
  /** Returns JSON. */
  sessionLimits: (kind: SessionKind, tenantId: string) => string;
  log: Log;
}

const answerFamily = { v1: 'v1/devices/me/rpc/response/', v2: 'v2/r/res/' };

export function callTopics({ admission, calls, readBody, sessionLimits, log }: CallTopicsDeps): TopicEntries {
  /** The controllers of sessions that made a call. A controller is aborted at the end of its session. */
  const ends = new WeakMap<Session, AbortController>();

  const endOf = (session: Session): AbortSignal => {
    let end = ends.get(session);
    if (!end) {
      end = new AbortController();
      ends.set(session, end);
      session.onEnd(() => ends.get(session)?.abort());
    }
    return end.signal;
  };

  const answer = async (session: Session, topic: string, document: Json): Promise<void> => {
    let text: string;
    try {
      text = (await calls.answer(session.device, document, endOf(session))) ?? errorText('timeout');
    } catch (error) {
      if (!(error instanceof Fault)) log.error('handler_bug', { path: 'rpc/request', error });
      text = errorText(error instanceof Fault ? error.message : 'Internal error');
    }
    if (!trySendAnswer(session, topic, text)) trySendAnswer(session, topic, errorText('the answer is too large'));
  };

  const operationOf =
    (prefix: string, family: 'v1' | 'v2'): Operation =>
    (publish, argument) => {
      const { session } = publish;
      const topic = `${prefix}${idOf(argument)}`;
      admission.count(session.device);
      const document = readBody(publish.payload, readJson);
      admission.touch(session.device);
      const method = document instanceof Map ? document.get('method') : undefined;
      if (family === 'v1' && method === 'getSessionLimits') {
        sendAnswer(session, topic, sessionLimits(session.kind, session.device.tenantId));
        publish.acknowledge();
        return;
      }
      const refusal = calls.refusal(session.device, document);
      if (refusal) throw refusal;
      publish.acknowledge();
      void answer(session, topic, document);
    };

  return {
    prefixes: forms({ v1: 'v1/devices/me/rpc/request/', v2: 'v2/r/req/' }, answerFamily, operationOf),
    answers: answerPatterns(answerFamily),
  };
}

function errorText(error: string): string {
  return JSON.stringify({ error });
}
