/** Opens the sockets of generators, over TLS where the order says so. */
import { connect, isIP, type OnReadOpts, type Socket } from 'node:net';
import { createSecureContext, type SecureContext, connect as secureConnect } from 'node:tls';

/** How a client judges the certificate of a server. */
export interface TlsOrder {
  /** Certificates in PEM that are trusted in place of those of Node; '' = those of Node. */
  ca: string;
  /** True: any certificate is accepted. */
  isInsecure: boolean;
}

export interface Place {
  host: string;
  port: number;
  /** Absent: plain TCP. */
  tls?: TlsOrder | undefined;
}

const contexts = new WeakMap<TlsOrder, SecureContext>();

/** Calls `opened` when the connection, and with TLS its handshake, is complete. */
export function openSocket({ host, port, tls }: Place, onread: OnReadOpts | undefined, opened: () => void): Socket {
  if (tls === undefined) return connect({ host, port, noDelay: true, ...(onread && { onread }) }, opened);
  const socket = secureConnect(
    {
      host,
      port,
      // An address is no server name [RFC 6066 section 3].
      ...(isIP(host) === 0 && { servername: host }),
      secureContext: contextOf(tls),
      rejectUnauthorized: !tls.isInsecure,
      ...(onread && { onread }),
    },
    opened,
  );
  socket.setNoDelay(true);
  return socket;
}

/** All connections of a process share one: it holds the certificates that Node has read. */
function contextOf(tls: TlsOrder): SecureContext {
  const context = contexts.get(tls) ?? createSecureContext(tls.ca === '' ? {} : { ca: tls.ca });
  contexts.set(tls, context);
  return context;
}
