/**
 * Topics of the streams, and the meaning of a filter for a topic. The files of this folder name the topics of answers
 * beside their operations (`TopicEntries.answers`).
 */
import type { StreamName } from '../session/subscriptions.ts';

/** A filter that covers several topics of a list uses the first one. */
export const streamTopics: Record<StreamName, string[]> = {
  attributes: ['v1/devices/me/attributes', 'v2/a', 'v2/a/j'],
  rpc: ['v1/devices/me/rpc/request/+', 'v2/r/req/+', 'v2/r/req/j/+'],
  'gateway-attributes': ['v1/gateway/attributes'],
  'gateway-rpc': ['v1/gateway/rpc'],
};

/** True when some topic of `pattern` (which may contain `+`) matches `filter`. */
export function canMatch(filter: string, pattern: string): boolean {
  const wanted = filter.split('/');
  const sent = pattern.split('/');
  for (let i = 0; i < wanted.length; i += 1) {
    if (wanted[i] === '#') return true;
    if (i >= sent.length) return false;
    if (wanted[i] !== '+' && sent[i] !== '+' && wanted[i] !== sent[i]) return false;
  }
  return wanted.length === sent.length;
}

/** True when every topic of `pattern` matches `filter`. */
export function filterCovers(filter: string, pattern: string): boolean {
  const wanted = filter.split('/');
  const sent = pattern.split('/');
  for (let i = 0; i < wanted.length; i += 1) {
    if (wanted[i] === '#') return true;
    if (i >= sent.length) return false;
    if (wanted[i] !== '+' && wanted[i] !== sent[i]) return false;
  }
  return wanted.length === sent.length;
}
