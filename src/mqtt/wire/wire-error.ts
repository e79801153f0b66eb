/** What a reader of packets throws: the connection that sent it ends for `reason`, and no other is touched. */
import { type CloseReason, closings } from './close-reason.ts';

export class WireError extends Error {
  readonly reason: CloseReason;

  constructor(reason: CloseReason) {
    super(closings[reason].sentence);
    this.name = 'WireError';
    this.reason = reason;
  }
}

// Made once: bad input must not cost a stack trace each.
export const malformed = new WireError('malformed');
export const protocolError = new WireError('protocol_error');
export const topicAliasRefused = new WireError('topic_alias');
