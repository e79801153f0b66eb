/**
 * The byte stream of a connection: a TCP or TLS socket (socket-transport.ts) or a WebSocket (websocket.ts). Pieces need
 * not align with packets.
 */
import type { ClientCertificate } from '../../onboarding/certificate-provision.ts';

/** Time after the end of a connection in which its client reads what was written before. */
export const endMsMax = 2_000;

export interface Transport {
  readonly remoteAddress: string;
  /** Written bytes that have not left this process. */
  readonly bufferedBytes: number;
  /** Unsent bytes of the current write, if known: the number decreases while a large write is sent. */
  readonly sendingBytes?: number;
  /** True when the client has reset the connection, which a transport that is not read learns only here. */
  readonly isReset?: boolean;
  /** True when written bytes do not reach the client: this side has ended, or the connection is closed. */
  readonly hasEnded: boolean;
  /** Called when the client has sent its CONNECT, with credentials. */
  named?(): void;
  /** Sends all bytes, in order; a slow reader is visible in `bufferedBytes`. The caller may reuse the buffer. */
  write(bytes: Buffer): void;
  /** Pauses and resumes reading. A transport that cannot pause keeps a bounded number of bytes, then ends. */
  pause(): void;
  resume(): void;
  /** Closes when all written bytes were sent, or after a short time. */
  end(): void;
  /** Closes at once. */
  destroy(): void;
}

/** Events of a transport for its connection. */
export interface TransportEvents {
  /** Called with received bytes, valid during the call only. */
  onData(bytes: Buffer): void;
  /**
   * Called when a transport that cannot pause has reached its cap: messages that wait for the journal are refused now.
   */
  onOverflow(): void;
  /** Called when all written bytes were sent. */
  onDrained(): void;
  /** Called exactly once, after all other events, for a close by either side; never inside a call of `Transport`. */
  onClosed(): void;
}

/** Makes the connection of an accepted transport; `certificate` is what a TLS client has sent. */
export type OpenConnection = (transport: Transport, certificate?: ClientCertificate) => TransportEvents;
