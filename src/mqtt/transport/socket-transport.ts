/**
 * A TCP or TLS socket as the transport of a connection. A connection costs only a socket and this transport, because
 * all sockets share their handlers and one buffer for reading.
 */
import { Socket, type SocketConstructorOpts } from 'node:net';
import type { ClientCertificate } from '../../onboarding/certificate-provision.ts';
import { endMsMax, type OpenConnection, type Transport, type TransportEvents } from './transport.ts';

/** Sockets are half open, because a client may end its side while its sign-in is still running. */
export const socketOptions = { noDelay: true, allowHalfOpen: true };

/** The bytes of one read over TCP, for all sockets of the worker: each read is handled before the next one. */
const readBuffer = Buffer.allocUnsafeSlow(64 * 1024);

/**
 * Returns a socket that reads into `readBuffer`, in place of `accepted`, of which no byte was read. Node allocates 64
 * kB for each read of an accepted socket, and has the option `onread` for new sockets only.
 */
export function withReadBuffer(socket: Socket): Socket {
  const accepted = socket as OwnedSocket;
  const options = { handle: accepted._handle, allowHalfOpen: true, onread };
  const reading = new Socket(options as SocketConstructorOpts);
  // The handle now belongs to the new socket: the old one ends without closing the connection.
  accepted._handle = null;
  accepted.destroy();
  return reading;
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

export class SocketTransport implements Transport {
  readonly remoteAddress: string;
  readonly #socket: OwnedSocket;
  readonly events: TransportEvents;
  #paused = false;
  #clientHasEnded = false;
  /** Set when this side has ended. */
  #endTimer: NodeJS.Timeout | undefined = undefined;

  constructor(
    accepted: Socket,
    clientAddress: string,
    open: OpenConnection,
    certificate: ClientCertificate | undefined,
  ) {
    const socket = accepted as OwnedSocket;
    this.#socket = socket;
    this.remoteAddress = clientAddress;
    socket.transport = this;
    socket.on('data', onData);
    socket.on('drain', onDrain);
    socket.on('end', onEnd);
    socket.on('error', ignoreSocketError);
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

  get hasEnded(): boolean {
    return !this.#socket.writable;
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
    if (this.#clientHasEnded) this.end();
  }

  /** Called when the client sends no more; received bytes may not be handled yet. */
  ended(): void {
    this.#clientHasEnded = true;
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

/** Ignores an error of a socket, because its event 'close' follows. */
export function ignoreSocketError(): void {}
