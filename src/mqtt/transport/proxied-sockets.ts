/**
 * Reads the PROXY header of connections from trusted proxies, before TLS and before MQTT. A socket is passed on with
 * its client's address, so that every limit of an address applies to the client. Sockets of other addresses are passed
 * on at once: a PROXY header from such an address is no CONNECT.
 */
import type { Socket } from 'node:net';
import { limits } from '../../base/limits.ts';
import type { Log } from '../../base/log.ts';
import type { CloseReason } from '../wire/close-reason.ts';
import { readProxyHeader } from './proxy-header.ts';
import { ignoreSocketError } from './socket-transport.ts';

interface ProxiedSocketsDeps {
  /** True for a proxy that sends the header. */
  sendsHeader: (address: string) => boolean;
  /** Called for a socket that ended without a connection. */
  refused: (reason: CloseReason) => void;
  log: Log;
}

type PassOn = (socket: Socket, clientAddress: string) => void;

export class ProxiedSockets {
  readonly #deps: ProxiedSocketsDeps;
  #waiting = 0;
  #loggedAt = Number.NEGATIVE_INFINITY;

  constructor(deps: ProxiedSocketsDeps) {
    this.#deps = deps;
  }

  /** Sockets whose header has not arrived. */
  get waiting(): number {
    return this.#waiting;
  }

  /**
   * Takes a socket that is not read yet. Calls `passOn` now, or after the header of the socket; not at all for a socket
   * that sends no valid header or that its client has reset.
   */
  take(socket: Socket, passOn: PassOn): void {
    const { remoteAddress } = socket;
    if (remoteAddress === undefined) {
      this.#deps.refused('connection_lost');
      socket.destroy();
      return;
    }
    if (!this.#deps.sendsHeader(remoteAddress)) {
      passOn(socket, remoteAddress);
      return;
    }
    this.#waiting += 1;
    let received: Buffer = Buffer.alloc(0);
    const settle = () => {
      this.#waiting -= 1;
      clearTimeout(timer);
      socket.off('data', onData);
      socket.off('end', onEnd);
      socket.off('error', ignoreSocketError);
      socket.off('close', onClosed);
    };
    const refuse = (cause: string) => {
      settle();
      this.#refused(remoteAddress, cause);
      socket.on('error', ignoreSocketError);
      socket.destroy();
    };
    const onData = (bytes: Buffer) => {
      received = received.length === 0 ? bytes : Buffer.concat([received, bytes]);
      const header = readProxyHeader(received);
      if (header === 'incomplete') return;
      if (header === 'invalid') {
        refuse('the first bytes are no PROXY header');
        return;
      }
      settle();
      socket.pause();
      const rest = received.subarray(header.bytes);
      if (rest.length > 0) socket.unshift(rest);
      passOn(socket, header.address ?? remoteAddress);
    };
    const onClosed = () => {
      settle();
      // A health check may connect and send nothing.
      if (received.length === 0) this.#deps.refused('connection_lost');
      else this.#refused(remoteAddress, 'the connection ended inside the PROXY header');
    };
    // The socket is half open, so its end does not close it.
    const onEnd = () => socket.destroy();
    const timer = setTimeout(() => refuse('no PROXY header came in time'), limits.proxyHeaderMsMax);
    socket.on('data', onData);
    socket.on('error', ignoreSocketError);
    socket.on('end', onEnd);
    socket.on('close', onClosed);
    socket.resume();
  }

  #refused(proxy: string, cause: string): void {
    this.#deps.refused('proxy_header');
    const now = performance.now();
    if (now - this.#loggedAt < limits.mqttAddressLogMs) return;
    this.#loggedAt = now;
    this.#deps.log.warn('mqtt_proxy_header', { proxy, reason: cause });
  }
}
