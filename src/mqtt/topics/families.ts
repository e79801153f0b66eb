/**
 * The two families of device topics: v1 (`v1/devices/me/…`) and the short v2 forms, bare and with `/j`. An answer is
 * sent on the family of the request. The forms with `/p` (Protobuf) are refused with a reason.
 */
import { badRequest } from '../../base/errors.ts';
import { replyId } from '../../rpc/rpc.ts';
import type { Operation } from '../session/operation.ts';
import { protobufRefused } from './table.ts';

/** Topics of one purpose, or their part before the ids. */
interface Family {
  v1: string;
  v2: string;
}

/**
 * Maps each form of `topic` (a whole topic, or a prefix that ends with a slash) to the result of `operationOf` for the
 * same form of `answer`.
 */
export function forms(
  topic: Family,
  answer: Family,
  operationOf: (answer: string, family: keyof Family) => Operation,
): Record<string, Operation> {
  return {
    [topic.v1]: operationOf(answer.v1, 'v1'),
    [topic.v2]: operationOf(answer.v2, 'v2'),
    [withFormat(topic.v2, 'j')]: operationOf(withFormat(answer.v2, 'j'), 'v2'),
    [withFormat(topic.v2, 'p')]: protobufRefused,
  };
}

/** The patterns of an `answer` that ends with an id, for subscriptions. */
export function answerPatterns({ v1, v2 }: Family): string[] {
  return [v1, v2, withFormat(v2, 'j')].map((prefix) => `${prefix}+`);
}

/** `v2/a` → `v2/a/j`, `v2/a/req/` → `v2/a/req/j/`. */
function withFormat(topic: string, format: 'j' | 'p'): string {
  return topic.endsWith('/') ? `${topic}${format}/` : `${topic}/${format}`;
}

/** Returns the `{id}` of a topic. */
export function idOf(text: string): number {
  const id = replyId(text);
  if (id === undefined)
    throw badRequest('topic_id', 'The id at the end of the topic must be a whole number of 32 bits.');
  return id;
}
