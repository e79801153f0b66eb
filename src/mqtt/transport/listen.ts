/**
 * MQTT over TCP and TLS. Each worker accepts for itself (the primary forks with SCHED_NONE). A connection costs only a
 * socket and its transport, because all sockets share their handlers. Certificates are read again when their files
 * change.
 */
import { randomInt } from 'node:crypto';
import { readFileSync, unwatchFile, watchFile } from 'node:fs';
import { createServer, Socket, type SocketConstructorOpts } from 'node:net';
import { createServer as createTlsServer, type TLSSocket, type Server as TlsServer } from 'node:tls';
import { messageOf } from '../../base/errors.ts';
import { limits } from '../../base/limits.ts';
import type { Log } from '../../base/log.ts';
import type { ClientCertificate } from '../../onboarding/certificate-provision.ts';
import type { CloseReason } from '../wire/close-reason.ts';
import { Accepting } from './accepting.ts';
import { certificateOf } from './certificate.ts';
import type { ConnectionRoom } from './connection-room.ts';
import { ProxiedSockets } from './proxied-sockets.ts';
import type { OpenConnection, Transport, TransportEvents } from './transport.ts';

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

/** Sockets are half open, because a client may end its side while its sign-in is still running. */
const socketOptions = { noDelay: true, allowHalfOpen: true };
const endMsMax = 2_000;
const certificateCheckMs = 5_000;

export async function listenTcp(address: string, port: number, deps: ListenDeps): Promise<ListeningSocket> {
  const { room, log } = deps;
  const sockets = new ProxiedSockets({ ...deps, sendsHeader: deps.sendsProxyHeader });
  const server = createServer({ ...socketOptions, pauseOnConnect: true }, (socket) => {
    probeLater(socket);
    room.arrivals.add(() => {
      sockets.take(socket, (ready, clientAddress) => {
        // Bytes after a PROXY header wait in a paused socket until its handlers are set.
        if (ready.bytesRead > 0) accept(ready.resume(), clientAddress, deps, undefined);
        else accept(withReadBuffer(ready as OwnedSocket), clientAddress, deps, undefined);
      });
    });
    room.taken();
  });
  const accepting = await Accepting.on(server, address, port, { hasRoom: () => room.has, log });
  room.add(
    () => sockets.waiting,
    () => accepting.check(),
  );
  return accepting;
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

interface TlsFiles {
  cert: string;
  key: string;
}

/** Clients may send a certificate; its device is looked up at the sign-in. */
export async function listenTls(
  address: string,
  port: number,
  files: TlsFiles,
  deps: ListenDeps,
): Promise<ListeningSocket> {
  const { room, log } = deps;
  const server = createTlsServer({
    ...readTls(files),
    ...socketOptions,
    minVersion: 'TLSv1.2',
    requestCert: true,
    rejectUnauthorized: false,
    handshakeTimeout: limits.mqttTlsHandshakeMsMax,
  });
  const addresses = new ClientAddresses();
  server.on('secureConnection', (socket: TLSSocket) => {
    socket.disableRenegotiation();
    accept(socket, addresses.of(socket), deps, certificateOf(socket));
  });
  server.on('tlsClientError', (error, socket) => {
    deps.refused('tls_failed');
    // On a handshake timeout Node only emits an event; this handler must destroy the socket.
    socket.destroy();
    log.debug('mqtt_tls_failed', { reason: messageOf(error) });
  });
  // A handshake, and a PROXY header before it, occupy the place of the connection that they become.
  let [sockets, secured] = [0, 0];
  const proxied = new ProxiedSockets({ ...deps, sendsHeader: deps.sendsProxyHeader });
  const front = createServer({ ...socketOptions, pauseOnConnect: true }, (socket) => {
    probeLater(socket);
    room.arrivals.add(() => {
      sockets += 1;
      socket.once('close', () => {
        sockets -= 1;
      });
      proxied.take(socket, (ready, clientAddress) => {
        addresses.add(ready, clientAddress);
        server.emit('connection', ready);
      });
    });
    room.taken();
  });
  server.on('secureConnection', (socket: TLSSocket) => {
    secured += 1;
    socket.once('close', () => {
      secured -= 1;
    });
  });
  const accepting = await Accepting.on(front, address, port, { hasRoom: () => room.has, log });
  room.add(
    () => sockets - secured,
    () => accepting.check(),
  );
  const stopWatching = watchCertificate(server, files, log);
  return {
    leaveToOthers: () => accepting.leaveToOthers(),
    acceptAgain: () => accepting.acceptAgain(),
    close: () => {
      stopWatching();
      accepting.close();
    },
  };
}

function readTls({ cert, key }: TlsFiles): { cert: Buffer; key: Buffer } {
  return { cert: readFileSync(cert), key: readFileSync(key) };
}

/** New connections get the new certificate; after an unusable file the old certificate is still used. */
function watchCertificate(server: TlsServer, files: TlsFiles, log: Log): () => void {
  const reload = () => {
    try {
      server.setSecureContext({ ...readTls(files), minVersion: 'TLSv1.2' });
      log.info('mqtt_certificate_loaded', { file: files.cert });
    } catch (error) {
      log.error('mqtt_certificate_unusable', { file: files.cert, reason: messageOf(error) });
    }
  };
  for (const file of [files.cert, files.key])
    watchFile(file, { interval: certificateCheckMs, persistent: false }, reload);
  return () => {
    for (const file of [files.cert, files.key]) unwatchFile(file, reload);
  };
}

/**
 * The addresses of clients that a PROXY header named. A TLS socket does not give access to the TCP socket below it, so
 * the ends of the TCP connection are the key.
 */
class ClientAddresses {
  readonly #addresses = new Map<string, { address: string }>();

  /** Keeps the address until the socket closes; keeps nothing for a socket without a PROXY header. */
  add(socket: Socket, clientAddress: string): void {
    if (clientAddress === (socket.remoteAddress ?? '')) return;
    const key = endsOf(socket);
    const entry = { address: clientAddress };
    this.#addresses.set(key, entry);
    // The event may follow another socket's use of the same port.
    socket.once('close', () => {
      if (this.#addresses.get(key) === entry) this.#addresses.delete(key);
    });
  }

  of(socket: TLSSocket): string {
    return this.#addresses.get(endsOf(socket))?.address ?? socket.remoteAddress ?? '';
  }
}

function endsOf({ localAddress, remoteAddress, remotePort }: Socket): string {
  return `${localAddress} ${remoteAddress} ${remotePort}`;
}

function accept(
  socket: Socket,
  clientAddress: string,
  { open, refused, room }: ListenDeps,
  certificate?: ClientCertificate,
): void {
  if (!room.hasPlace) {
    refused('too_many_connections');
    socket.on('error', ignore);
    socket.destroy();
    return;
  }
  new SocketTransport(socket as OwnedSocket, clientAddress, open, certificate);
}

/** The bytes of one read over TCP, for all sockets of the worker: each read is handled before the next one. */
const readBuffer = Buffer.allocUnsafeSlow(64 * 1024);

/**
 * Returns a socket that reads into `readBuffer`, in place of `accepted`, of which no byte was read. Node allocates 64
 * kB for each read of an accepted socket, and has the option `onread` for new sockets only.
 */
function withReadBuffer(accepted: OwnedSocket): OwnedSocket {
  const options = { handle: accepted._handle, allowHalfOpen: true, onread };
  const socket = new Socket(options as SocketConstructorOpts) as OwnedSocket;
  // The handle now belongs to the new socket: the old one ends without closing the connection.
  accepted._handle = null;
  accepted.destroy();
  return socket;
}

/** One object for all sockets: Node calls the function as a method of the socket. */
const onread = {
  buffer: readBuffer,
  callback(this: OwnedSocket, length: number): boolean {
    this.transport.events.onData(readBuffer.subarray(0, length));
    return true;
  },
};

/** A socket with a reference to its transport, so that all sockets share their handlers. */
interface OwnedSocket extends Socket {
  transport: SocketTransport;
  /**
   * Node uses this field to decide whether a socket is idle; only this field shows a partial write. `getpeername`
   * returns 0 or an error of the system; the functions of a socket return what they read first.
   */
  _handle: { writeQueueSize?: number; getpeername(out: object): number } | null;
}

class SocketTransport implements Transport {
  readonly remoteAddress: string;
  readonly #socket: OwnedSocket;
  readonly events: TransportEvents;
  #paused = false;
  #hasEnded = false;
  /** Set when this side has ended. */
  #endTimer: NodeJS.Timeout | undefined = undefined;

  constructor(
    socket: OwnedSocket,
    clientAddress: string,
    open: OpenConnection,
    certificate: ClientCertificate | undefined,
  ) {
    this.#socket = socket;
    this.remoteAddress = clientAddress;
    socket.transport = this;
    socket.on('data', onData);
    socket.on('drain', onDrain);
    socket.on('end', onEnd);
    socket.on('error', ignore);
    socket.on('close', onClose);
    this.events = open(this, certificate);
  }

  get bufferedBytes(): number {
    return this.#socket.writableLength;
  }

  get sendingBytes(): number {
    return this.#socket._handle?.writeQueueSize ?? 0;
  }

  get isReset(): boolean {
    const handle = this.#socket._handle;
    return handle === null || handle.getpeername({}) !== 0;
  }

  /** Copies the bytes, because unsent bytes would be kept as a view. */
  write(bytes: Buffer): void {
    if (this.#socket.writable) this.#socket.write(Buffer.from(bytes));
  }

  pause(): void {
    this.#paused = true;
    this.#socket.pause();
  }

  resume(): void {
    this.#paused = false;
    this.#socket.resume();
    if (this.#hasEnded) this.end();
  }

  /** Called when the client sends no more; received bytes may not be handled yet. */
  ended(): void {
    this.#hasEnded = true;
    if (!this.#paused) this.end();
  }

  end(): void {
    const socket = this.#socket;
    if (socket.destroyed || this.#endTimer !== undefined) return;
    socket.end();
    // Further input is ignored, but unread bytes would make the kernel drop the bytes just written.
    socket.resume();
    this.#destroyLater(this.#unsentBytes);
  }

  /** Called when the socket is closed. */
  closed(): void {
    clearTimeout(this.#endTimer);
    this.events.onClosed();
  }

  destroy(): void {
    this.#socket.destroy();
  }

  get #unsentBytes(): number {
    return this.bufferedBytes + this.sendingBytes;
  }

  /**
   * Waits again while the client reads what was written. Bytes that the client sends win no time: a client that does
   * not notice the end must get an error for what it sends.
   */
  #destroyLater(unsentBytes: number): void {
    this.#endTimer = setTimeout(() => {
      const unsent = this.#unsentBytes;
      if (unsent > 0 && unsent < unsentBytes) this.#destroyLater(unsent);
      else this.destroy();
    }, endMsMax).unref();
  }
}

function onData(this: OwnedSocket, bytes: Buffer): void {
  this.transport.events.onData(bytes);
}

function onEnd(this: OwnedSocket): void {
  this.transport.ended();
}

function onDrain(this: OwnedSocket): void {
  this.transport.events.onDrained();
}

function onClose(this: OwnedSocket): void {
  this.transport.closed();
}

/** Ignores an error, because the event 'close' follows. */
function ignore(): void {}
