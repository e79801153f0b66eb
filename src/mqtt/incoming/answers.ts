/**
 * The answer to a refused PUBLISH. MQTT 5 gets a reason code, and the connection stays. MQTT 3 has no code. A message
 * that would be refused again is acknowledged, so that the client does not repeat it without end. A message that may
 * succeed later is not acknowledged, and the connection ends, so that the client keeps the message; after a refusal of
 * late rows it ends later, because other messages of the client are accepted (`passesLater`). A refusal of the
 * journal is not answered at once: the client is not read for a while, so that the message may still be accepted
 * (`read-gate.ts`).
 */
import { ErrorCode, type Fault } from '../../base/errors.ts';
import { isJournalRefusal } from '../../ingest/refusals.ts';
import type { CloseReason } from '../wire/close-reason.ts';
import { code } from '../wire/reason-codes.ts';

interface Answer {
  /** Reason code of PUBACK and PUBREC. */
  code: number;
  /**
   * The reason for which an MQTT 3 connection ends; undefined = the message is acknowledged and the connection stays.
   */
  closesMqtt3: CloseReason | undefined;
}

const topicReasons = new Set(['unknown_topic', 'provisioning_topic']);

export function answerOf(fault: Fault): Answer {
  const { status, errorCode, reason } = fault;
  if (topicReasons.has(reason)) return stays(code.topicName);
  if (errorCode === ErrorCode.entitiesLimit) return stays(code.quota);
  // PUBACK has no code 0x95, and 0x97 is the code for a limit that this server imposes [MQTT-3.4.2.1].
  if (reason === 'message_too_large') return stays(code.quota);
  switch (status) {
    case 400:
    case 415:
    case 413: // The code for a quota would suggest that a pause helps.
      return stays(code.payload);
    case 401:
    case 403:
      return stays(code.notAuthorized);
    case 429:
      return { code: code.quota, closesMqtt3: 'rate_limit' };
    case 503:
      return { code: isQuota(fault) ? code.quota : code.implementation, closesMqtt3: 'server_fault' };
    default:
      return stays(code.implementation);
  }
}

/** Refusals with `ingest.ack: store` of a message that is already journaled: ClickHouse stores the message later. */
const storedLater: Record<string, true> = { store_slow: true, store_refused: true };

/**
 * `clock_wrong` does not pause the client, because its other messages may have their own "ts", and `stream_late` does
 * not, because its live rows are accepted.
 */
const quotaReasons: Record<string, true> = { ...storedLater, clock_wrong: true, gateway_room: true, stream_late: true };

/** True for reasons for which a client should slow down and send again. */
function isQuota(fault: Fault): boolean {
  return isJournalRefusal(fault) || fault.reason in quotaReasons;
}

/** True when a refused message is lost unless its client sends it again. */
export function isDiscarded({ reason }: Fault): boolean {
  return !(reason in storedLater);
}

/**
 * True for a refusal that later messages of the client need not share. An MQTT 3 client may send its queue in order,
 * and would never get past such a message if the connection ended at once.
 */
export function passesLater({ reason }: Fault): boolean {
  return reason === 'stream_late' || reason === 'stream_late_share';
}

/** True for a refusal that may end within seconds, so that pausing the client helps. */
export function mayPass(fault: Fault): boolean {
  return isJournalRefusal(fault) || (fault.status === 503 && fault.reason === 'gateway_held');
}

function stays(reasonCode: number): Answer {
  return { code: reasonCode, closesMqtt3: undefined };
}
