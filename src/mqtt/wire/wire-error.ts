/** The error that readers of packets throw. The connection that sent the packet ends for `reason`. */
import { type CloseReason, closings } from './close-reason.ts';

export class WireError extends Error {
  readonly reason: CloseReason;

  constructor(reason: CloseReason) {
    super(closings[reason].sentence);
    this.name = 'WireError';
    this.reason = reason;
  }
}

// Made once, because a stack trace for each invalid packet would cost too much.
export const malformed = new WireError('malformed');
export const protocolError = new WireError('protocol_error');
export const topicAliasRefused = new WireError('topic_alias');
