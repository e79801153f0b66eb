/**
 * The connection, as its parts see it: the reader, the messages of the client, the messages to the client. A part may
 * ask for the end of the connection; only the connection ends itself.
 */
import type { Subject } from '../../base/errors.ts';
import type { Confirm } from '../session/session.ts';
import type { CloseReason } from '../wire/close-reason.ts';

export interface ClientConnection extends Subject {
  /** `gone`: the transport is closed, and what it brought is still being handled. */
  readonly reach: 'open' | 'gone' | 'closed';
  /** The packet leaves at the end of the turn of the loop. */
  send(packet: Buffer, confirm?: Confirm): void;
  /** At the end of the turn, what is due is sent: packets, then acknowledgements, then a file. */
  flushSoon(): void;
  close(reason: CloseReason): void;
}
