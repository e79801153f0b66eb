/**
 * The connection, as its parts see it: the reader, the messages of the client, the messages to the client. A part may
 * ask for the end of the connection; only the connection ends itself.
 */
import type { Subject } from '../../base/errors.ts';
import type { Confirm } from '../session/session.ts';
import type { CloseReason } from '../wire/close-reason.ts';

export interface ClientConnection extends Subject {
  /** `gone`: the transport is closed, and received packets are still being handled. */
  readonly reach: 'open' | 'gone' | 'closed';
  /** Sends the packet at the end of this turn of the event loop. */
  send(packet: Buffer, confirm?: Confirm): void;
  /** Sends what is due at the end of this turn of the event loop: packets, then acknowledgements, then a file. */
  flushSoon(): void;
  close(reason: CloseReason): void;
}
