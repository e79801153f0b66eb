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

/** Every topic of the streams. */
export const allStreamTopics: readonly string[] = Object.values(streamTopics).flat();

/** The levels of patterns. The code names all patterns, so they are few. */
const levelsOfPatterns = new Map<string, readonly string[]>();

function levelsOf(pattern: string): readonly string[] {
  let levels = levelsOfPatterns.get(pattern);
  if (!levels) levelsOfPatterns.set(pattern, (levels = pattern.split('/')));
  return levels;
}

/** True when some topic of `pattern` (which may contain `+`) matches the filter with the levels `wanted`. */
export function canMatch(wanted: readonly string[], pattern: string): boolean {
  const sent = levelsOf(pattern);
  for (let i = 0; i < wanted.length; i += 1) {
    if (wanted[i] === '#') return true;
    if (i >= sent.length) return false;
    if (wanted[i] !== '+' && sent[i] !== '+' && wanted[i] !== sent[i]) return false;
  }
  return wanted.length === sent.length;
}

/** True when every topic of `pattern` matches the filter with the levels `wanted`. */
export function filterCovers(wanted: readonly string[], pattern: string): boolean {
  const sent = levelsOf(pattern);
  for (let i = 0; i < wanted.length; i += 1) {
    if (wanted[i] === '#') return true;
    if (i >= sent.length) return false;
    if (wanted[i] !== '+' && wanted[i] !== sent[i]) return false;
  }
  return wanted.length === sent.length;
}
