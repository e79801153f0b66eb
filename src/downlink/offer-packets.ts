/** The packets of an offer between workers: their JSON, and the channel of a worker's own packets. */
import { isObject } from '../base/schema.ts';
import { isName, isText, isWhole } from '../bus/messages.ts';

/**
 * `from` is a node: a worker, whose inbox has a new name with each start. `heardAt`: the time at which the worker that
 * answers received the question, by its own monotonic clock. The grant returns this time, so that the worker can refuse
 * a grant that arrives more than `waitMs` later.
 */
export type OfferPacket =
  | { kind: 'ask'; from: string; id: number; device: number; topic: string }
  /** An earlier version leaves out device and topic. */
  | { kind: 'have'; from: string; id: number; heardAt: number; device?: number; topic?: string }
  | Grant
  | { kind: 'answer'; from: string; id: number; taken: boolean };

interface Grant {
  kind: 'grant';
  from: string;
  id: number;
  heardAt: number;
  /** An earlier version leaves out this time, and waits for `offerWaitMs`. */
  waitMs?: number;
  device: number;
  topic: string;
  message: object;
}

export function isOfferPacket(value: unknown): value is OfferPacket {
  if (!isObject(value) || !isName(value['from']) || !isWhole(value['id'])) return false;
  const { kind, heardAt, waitMs, device, topic, message, taken } = value;
  switch (kind) {
    case 'ask':
      return isWhole(device) && isText(topic);
    case 'have': {
      const isWholeOrAbsent = device === undefined || isWhole(device);
      return Number.isFinite(heardAt) && isWholeOrAbsent && (topic === undefined || isText(topic));
    }
    case 'grant': {
      const isNumberOrAbsent = waitMs === undefined || Number.isFinite(waitMs);
      return Number.isFinite(heardAt) && isNumberOrAbsent && isWhole(device) && isText(topic) && isObject(message);
    }
    case 'answer':
      return typeof taken === 'boolean';
    default:
      return false;
  }
}

/** Returns the channel of the packets that only this worker receives. */
export function inboxOf(node: string): string {
  return `worker-${node}`;
}
