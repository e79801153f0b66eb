/**
 * TLS on sockets that were accepted: from the handshake to a socket with the address of its client. Certificates are
 * read again when their files change.
 */
import { readFileSync, unwatchFile, watchFile } from 'node:fs';
import type { Socket } from 'node:net';
import { createServer, type Server, type TLSSocket } from 'node:tls';
import { messageOf } from '../../base/errors.ts';
import { limits } from '../../base/limits.ts';
import type { Log } from '../../base/log.ts';
import { socketOptions } from './socket-transport.ts';

export interface TlsFiles {
  cert: string;
  key: string;
}

interface TlsHandshakesDeps {
  files: TlsFiles;
  /** Called for each socket whose handshake succeeded. */
  secured: (socket: TLSSocket, clientAddress: string) => void;
  failed: () => void;
  log: Log;
}

const minVersion = 'TLSv1.2';
const certificateCheckMs = 5_000;

export class TlsHandshakes {
  readonly #deps: TlsHandshakesDeps;
  readonly #server: Server;
  readonly #addresses = new ClientAddresses();
  /** Sockets below TLS that are open. */
  #sockets = 0;
  /** TLS sockets that are open after their handshake. */
  #secured = 0;

  /** Clients may send a certificate; its device is looked up at the sign-in. Throws when a file cannot be used. */
  constructor(deps: TlsHandshakesDeps) {
    this.#deps = deps;
    this.#server = createServer({
      ...readTls(deps.files),
      ...socketOptions,
      minVersion,
      requestCert: true,
      rejectUnauthorized: false,
      handshakeTimeout: limits.mqttTlsHandshakeMsMax,
    });
    this.#server.on('secureConnection', (socket) => this.#onSecured(socket));
    this.#server.on('tlsClientError', (error, socket) => {
      deps.failed();
      // On a handshake timeout Node only emits an event; this handler must destroy the socket.
      socket.destroy();
      deps.log.debug('mqtt_tls_failed', { reason: messageOf(error) });
    });
  }

  /** Sockets that wait for their handshake or, before it, for a PROXY header. */
  get waiting(): number {
    return this.#sockets - this.#secured;
  }

  /** Counts a socket until it closes: a handshake occupies the place of the connection that it becomes. */
  count(socket: Socket): void {
    this.#sockets += 1;
    socket.once('close', () => {
      this.#sockets -= 1;
    });
  }

  /** Begins the handshake of a socket that was counted. */
  begin(socket: Socket, clientAddress: string): void {
    this.#addresses.add(socket, clientAddress);
    this.#server.emit('connection', socket);
  }

  watchFiles(): void {
    for (const file of this.#files) {
      watchFile(file, { interval: certificateCheckMs, persistent: false }, this.#reload);
    }
  }

  unwatchFiles(): void {
    for (const file of this.#files) unwatchFile(file, this.#reload);
  }

  #onSecured(socket: TLSSocket): void {
    socket.disableRenegotiation();
    this.#deps.secured(socket, this.#addresses.of(socket));
    this.#secured += 1;
    socket.once('close', () => {
      this.#secured -= 1;
    });
  }

  get #files(): string[] {
    const { cert, key } = this.#deps.files;
    return [cert, key];
  }

  /** New connections get the new certificate; after an unusable file the old certificate is still used. */
  readonly #reload = (): void => {
    const { files, log } = this.#deps;
    try {
      this.#server.setSecureContext({ ...readTls(files), minVersion });
      log.info('mqtt_certificate_loaded', { file: files.cert });
    } catch (error) {
      log.error('mqtt_certificate_unusable', { file: files.cert, reason: messageOf(error) });
    }
  };
}

function readTls({ cert, key }: TlsFiles): { cert: Buffer; key: Buffer } {
  return { cert: readFileSync(cert), key: readFileSync(key) };
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
