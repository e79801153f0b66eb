/**
 * What a connection reads from and writes to: a TCP or TLS socket (listen.ts) or a WebSocket (websocket.ts). Bytes are
 * a stream: no piece needs to align with a packet.
 */
import type { ClientCertificate } from '../onboarding/certificate-provision.ts';
export interface Transport {
  readonly remoteAddress: string;
  /** Bytes that were written and have not left this process. */
  readonly bufferedBytes: number;
  /** Bytes left of the current write, if known: the number falls while a large write is being read. */
  readonly sendingBytes?: number;
  /** Takes all of it, in order; a reader that is too slow is seen in `bufferedBytes`. The buffer may be used again. */
  write(bytes: Buffer): void;
  /** Stops and takes up reading again. A transport that cannot stop keeps a bounded amount, then ends. */
  pause(): void;
  resume(): void;
  /** Closes when everything written has left, or after a short while. */
  end(): void;
  /** Closes at once. */
  destroy(): void;
}

/** Events of a transport for its connection. */
export interface TransportEvents {
  /** Bytes that came in, valid during the call only. */
  onData(bytes: Buffer): void;
  /** A transport that cannot stop reading has kept all it may: what waits for the journal is refused now. */
  onOverflow(): void;
  /** Everything written has left. */
  onDrained(): void;
  /**
   * Called exactly once, after all other events, for a close by either side; never from inside one of the calls above.
   */
  onClosed(): void;
}

/** A connection is made for each accepted transport; `certificate` is what a TLS client has shown. */
export type OpenConnection = (transport: Transport, certificate?: ClientCertificate) => TransportEvents;
