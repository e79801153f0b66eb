/** All topics on which a session may receive messages, and the topics of each stream. */
import type { StreamName } from '../subscriptions.ts';

/** In each list the family comes first that is used for a filter of both families. */
export const streamTopics: Record<StreamName, string[]> = {
  attributes: ['v1/devices/me/attributes', 'v2/a', 'v2/a/j'],
  rpc: ['v1/devices/me/rpc/request/+', 'v2/r/req/+', 'v2/r/req/j/+'],
  'gateway-attributes': ['v1/gateway/attributes'],
  'gateway-rpc': ['v1/gateway/rpc'],
};

export const downTopics = [
  ...Object.values(streamTopics).flat(),
  'v1/devices/me/attributes/response/+',
  'v2/a/res/+',
  'v2/a/res/j/+',
  'v1/devices/me/rpc/response/+',
  'v2/r/res/+',
  'v2/r/res/j/+',
  'v2/fw/response/+/chunk/+',
  'v2/fw/error',
  'v2/sw/response/+/chunk/+',
  'v2/sw/error',
  // Clients subscribe to these short forms to receive chunks.
  'v2/fw/response/+',
  'v2/sw/response/+',
  'v1/gateway/attributes/response',
  'v1/gateway/disconnect',
];

export const provisionTopics = ['/provision/response'];

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
export function covers(filter: string, pattern: string): boolean {
  const wanted = filter.split('/');
  const sent = pattern.split('/');
  for (let i = 0; i < wanted.length; i += 1) {
    if (wanted[i] === '#') return true;
    if (i >= sent.length) return false;
    if (wanted[i] !== '+' && wanted[i] !== sent[i]) return false;
  }
  return wanted.length === sent.length;
}
