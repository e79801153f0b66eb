/**
 * Devices of an idle fleet, each on a separate connection. On demand all of them lose their connections at one moment
 * and reconnect at once, with retries as devices make them. One process has thousands, and opens them in slices: the
 * server closes a connection whose CONNECT comes too late, and a device sends its CONNECT at once.
 */
import { connect, type Socket } from 'node:net';
import { setImmediate as turn } from 'node:timers/promises';
import { refusedText } from '../counts.ts';
import { connectPacket } from './mqtt-packets.ts';

export interface FleetOrder {
  host: string;
  port: number;
  tokens: string[];
  /** Own addresses to connect from: one has too few ports for all. */
  localAddresses: string[];
  socketsPerAddress: number;
}

/** What the devices did in one task. */
export interface FleetDone {
  /** Unix time. */
  startedAtMs: number;
  endedAtMs: number;
  /** Attempts that failed: refused by the server, or by its full queue. */
  failed: Record<string, number>;
  /** Connections that had ended before without a request. */
  lost: number;
  /** When each device was connected, in milliseconds since `startedAtMs`, in order. */
  connectedAfterMs: number[];
}

const firstLocalPort = 10_000;
const localPortsMax = 55_000;
const connectsAtOnce = 200;
/** Attempts that begin in one turn of the loop. */
const connectsPerTurn = 50;
const keepAliveSeconds = 3_600;
const retryMs = 1_000;
const attemptMsMax = 20_000;
/** The task has failed when no device was connected for so long: each attempt of all others has ended by then. */
const progressMsMax = 60_000;

// One for all sockets: an answer is small and read at once.
const received = Buffer.allocUnsafe(16 * 1024);

interface DeviceCounts {
  failed: Record<string, number>;
  lost: number;
  /** No device tries again. */
  isEnded: boolean;
}

class Device {
  readonly #order: FleetOrder;
  readonly #counts: DeviceCounts;
  readonly #token: string;
  readonly #localAddress: string;
  readonly #localPort: number;
  #attempts = 0;
  #socket: Socket | undefined;

  constructor(order: FleetOrder, counts: DeviceCounts, n: number) {
    this.#order = order;
    this.#counts = counts;
    this.#token = order.tokens[n]!;
    this.#localAddress = order.localAddresses[n % order.localAddresses.length]!;
    // Named, because Linux searches longer for a free port the more ports of an address are in use.
    this.#localPort = firstLocalPort + Math.floor(n / order.localAddresses.length);
  }

  async connect(): Promise<void> {
    while (!this.#counts.isEnded) {
      const fault = await this.#attempt();
      if (fault === '') return;
      const { failed } = this.#counts;
      failed[fault] = (failed[fault] ?? 0) + 1;
      await elapse(retryMs * (0.5 + Math.random()));
    }
  }

  /** Ends the connection as a lost network does: without DISCONNECT or FIN. */
  cut(): void {
    this.#socket?.removeAllListeners('close').resetAndDestroy();
    this.#socket = undefined;
  }

  /** Each attempt takes another port: that of the last one may stay taken for a while. */
  #bank(): number {
    const banks = Math.floor(localPortsMax / this.#order.socketsPerAddress);
    return this.#attempts++ % banks;
  }

  /** Returns '' when the device is connected, else the cause why it is not. */
  #attempt(): Promise<string> {
    const { host, port } = this.#order;
    const token = this.#token;
    return new Promise((resolve) => {
      let isConnected = false;
      const callback = (length: number): boolean => {
        if (isConnected) return true;
        // CONNACK of MQTT 3.1.1.
        isConnected = length === 4 && received[0] === 0x20 && received[3] === 0;
        if (isConnected) end('');
        else end(`CONNACK ${received[3]}`);
        return true;
      };
      const onread = { buffer: received, callback };
      const socket = connect({
        host,
        port,
        localAddress: this.#localAddress,
        localPort: this.#localPort + this.#bank() * this.#order.socketsPerAddress,
        noDelay: true,
        onread,
      });
      const timer = setTimeout(() => end('timeout'), attemptMsMax);
      const end = (fault: string): void => {
        clearTimeout(timer);
        if (fault !== '' && socket.connecting) socket.destroy();
        else if (fault !== '') socket.resetAndDestroy();
        resolve(fault);
      };
      socket.once('connect', () => {
        socket.write(connectPacket({ clientId: token, username: token, keepAliveSeconds, level: 4 }));
      });
      socket.once('error', (error: NodeJS.ErrnoException) => end(error.code ?? error.message));
      socket.once('close', () => {
        if (isConnected) this.#counts.lost += 1;
        else end('closed');
      });
      this.#socket = socket;
    });
  }
}

export class FleetDevices {
  readonly #devices: Device[];
  readonly #progressMsMax: number;
  readonly #counts: DeviceCounts = { failed: {}, lost: 0, isEnded: false };

  constructor(order: FleetOrder, waitMsMax = progressMsMax) {
    this.#progressMsMax = waitMsMax;
    this.#devices = order.tokens.map((_, n) => new Device(order, this.#counts, n));
  }

  /** Connects the devices, a few at once. */
  async connect(): Promise<FleetDone> {
    return await this.#connectAll(Date.now(), connectsAtOnce);
  }

  /** Cuts off all devices, which then reconnect. */
  async storm(): Promise<FleetDone> {
    const startedAtMs = Date.now();
    for (const device of this.#devices) device.cut();
    return await this.#connectAll(startedAtMs, this.#devices.length);
  }

  /** Returns what has happened since the last task. */
  idle(): FleetDone {
    const now = Date.now();
    return { startedAtMs: now, endedAtMs: now, failed: {}, lost: this.#counts.lost, connectedAfterMs: [] };
  }

  close(): void {
    this.#counts.isEnded = true;
    for (const device of this.#devices) device.cut();
  }

  #stuckText({ length }: number[]): string {
    const of = `${length} of ${this.#devices.length} devices are connected`;
    const seconds = this.#progressMsMax / 1000;
    return `${of}, and no other one was for ${seconds} s; failed attempts: ${refusedText(this.#counts.failed)}`;
  }

  async #connectAll(startedAtMs: number, atOnce: number): Promise<FleetDone> {
    this.#counts.failed = {};
    const waiting = this.#devices.values();
    const connectedAfterMs: number[] = [];
    let progressAt = performance.now();
    const connectNext = async (): Promise<void> => {
      for (const device of waiting) {
        await device.connect();
        progressAt = performance.now();
        connectedAfterMs.push(Date.now() - startedAtMs);
      }
    };
    const callers: Promise<void>[] = [];
    while (callers.length < atOnce) {
      callers.push(connectNext());
      if (callers.length % connectsPerTurn === 0) await turn();
    }
    let timer: NodeJS.Timeout | undefined;
    const stuck = new Promise<never>((_, reject) => {
      timer = setInterval(() => {
        if (performance.now() - progressAt > this.#progressMsMax) reject(new Error(this.#stuckText(connectedAfterMs)));
      }, this.#progressMsMax / 60);
    });
    await Promise.race([Promise.all(callers), stuck]).finally(() => clearInterval(timer));
    const { failed, lost } = this.#counts;
    return { startedAtMs, endedAtMs: Date.now(), failed, lost, connectedAfterMs };
  }
}

function elapse(milliseconds: number): Promise<void> {
  return new Promise((resolve) => setTimeout(resolve, milliseconds));
}
