/** MQTT over TCP and TLS. Each worker accepts for itself (the primary forks with SCHED_NONE). */
import { randomInt } from 'node:crypto';
import { createServer, type Socket } from 'node:net';
import { limits } from '../../base/limits.ts';
import type { Log } from '../../base/log.ts';
import type { ClientCertificate } from '../../onboarding/certificate-provision.ts';
import type { CloseReason } from '../wire/close-reason.ts';
import { Accepting } from './accepting.ts';
import { certificateOf } from './certificate.ts';
import type { ConnectionRoom } from './connection-room.ts';
import { ProxiedSockets } from './proxied-sockets.ts';
import { ignoreSocketError, SocketTransport, socketOptions, withReadBuffer } from './socket-transport.ts';
import { type TlsFiles, TlsHandshakes } from './tls-handshakes.ts';
import type { OpenConnection } from './transport.ts';

interface ListenDeps {
  open: OpenConnection;
  /** Called for a socket that ended without a connection. */
  refused: (reason: CloseReason) => void;
  room: ConnectionRoom;
  /** True for the address of a proxy that sends a PROXY header. */
  sendsProxyHeader: (address: string) => boolean;
  log: Log;
}

export interface ListeningSocket {
  /** Other workers of this host accept from now on. */
  leaveToOthers(): void;
  /** Resolves when this worker listens as well. */
  acceptAgain(): Promise<void>;
  /** Stops accepting connections. */
  close(): void;
}

export async function listenTcp(address: string, port: number, deps: ListenDeps): Promise<ListeningSocket> {
  const { room, log } = deps;
  const proxied = new ProxiedSockets({ ...deps, sendsHeader: deps.sendsProxyHeader });
  const server = createServer({ ...socketOptions, pauseOnConnect: true }, (socket) => {
    probeLater(socket);
    room.arrivals.add(() => {
      proxied.take(socket, (ready, clientAddress) => {
        // Bytes after a PROXY header wait in a paused socket until its handlers are set.
        if (ready.bytesRead > 0) accept(ready.resume(), clientAddress, deps, undefined);
        else accept(withReadBuffer(ready), clientAddress, deps, undefined);
      });
    });
    room.taken();
  });
  const accepting = await Accepting.on(server, address, port, { hasRoom: () => room.has, log });
  room.add(
    () => proxied.waiting,
    () => accepting.check(),
  );
  return accepting;
}

export async function listenTls(
  address: string,
  port: number,
  files: TlsFiles,
  deps: ListenDeps,
): Promise<ListeningSocket> {
  const { room, refused, log } = deps;
  const proxied = new ProxiedSockets({ ...deps, sendsHeader: deps.sendsProxyHeader });
  const handshakes = new TlsHandshakes({
    files,
    secured: (socket, clientAddress) => accept(socket, clientAddress, deps, certificateOf(socket)),
    failed: () => refused('tls_failed'),
    log,
  });
  const server = createServer({ ...socketOptions, pauseOnConnect: true }, (socket) => {
    probeLater(socket);
    room.arrivals.add(() => {
      handshakes.count(socket);
      proxied.take(socket, (ready, clientAddress) => handshakes.begin(ready, clientAddress));
    });
    room.taken();
  });
  const accepting = await Accepting.on(server, address, port, { hasRoom: () => room.has, log });
  room.add(
    () => handshakes.waiting,
    () => accepting.check(),
  );
  handshakes.watchFiles();
  return {
    leaveToOthers: () => accepting.leaveToOthers(),
    acceptAgain: () => accepting.acceptAgain(),
    close: () => {
      handshakes.unwatchFiles();
      accepting.close();
    },
  };
}

/**
 * Makes the kernel probe the client after a silence, to find a client that is gone without a FIN. Ten probes without an
 * answer, one a second, end the connection: Node sets these numbers. Each socket has another silence. The kernel probes
 * all sockets that are due within the same two seconds at one moment; with one silence for all sockets these would be
 * the thousands that connected together, and its queue drops all but a thousand (`net.core.netdev_max_backlog`).
 */
function probeLater(socket: Socket): void {
  socket.setKeepAlive(true, randomInt(limits.mqttProbeMsMin, limits.mqttProbeMsMax));
}

function accept(
  socket: Socket,
  clientAddress: string,
  { open, refused, room }: ListenDeps,
  certificate?: ClientCertificate,
): void {
  if (!room.hasPlace) {
    refused('too_many_connections');
    socket.on('error', ignoreSocketError);
    socket.destroy();
    return;
  }
  new SocketTransport(socket, clientAddress, open, certificate);
}
