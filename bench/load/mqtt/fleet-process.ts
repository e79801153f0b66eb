/**
 * One process of a connected and silent fleet: each device on a separate connection. On demand all devices lose their
 * connections at one moment and reconnect at once, with retries as devices make them.
 */
import { connect, type Socket } from 'node:net';
import { connectPacket } from './mqtt-packets.ts';

export interface FleetOrder {
  host: string;
  port: number;
  tokens: string[];
  /** Own addresses to connect from: one has too few ports for all. */
  localAddresses: string[];
  socketsPerAddress: number;
}

export type FleetTask = { kind: 'connect'; order: FleetOrder } | { kind: 'storm' } | { kind: 'tell' };

export interface FleetNote {
  kind: 'connected';
  /** Unix time. */
  startedAtMs: number;
  endedAtMs: number;
  /** Attempts that failed: refused by the server, or by its full queue. */
  failed: Record<string, number>;
  /** Connections that had ended before without a request. */
  lost: number;
  /** CPU time that this process took for the task. */
  cpuMs: number;
  /** When each device was connected, in milliseconds since `startedAtMs`, in order. */
  connectedAfterMs: number[];
}

const firstLocalPort = 10_000;
const localPortsMax = 55_000;
const connectsAtOnce = 200;
const keepAliveSeconds = 3_600;
const retryMs = 1_000;
const attemptMsMax = 20_000;

// One for all sockets: an answer is small and read at once.
const received = Buffer.allocUnsafe(16 * 1024);

let failed: Record<string, number> = {};
let lost = 0;

class Device {
  readonly #order: FleetOrder;
  readonly #token: string;
  readonly #localAddress: string;
  readonly #localPort: number;
  #attempts = 0;
  #socket: Socket | undefined;

  constructor(order: FleetOrder, n: number) {
    this.#order = order;
    this.#token = order.tokens[n]!;
    this.#localAddress = order.localAddresses[n % order.localAddresses.length]!;
    // Named, because Linux searches longer for a free port the more ports of an address are in use.
    this.#localPort = firstLocalPort + Math.floor(n / order.localAddresses.length);
  }

  async connect(): Promise<void> {
    for (;;) {
      const fault = await this.#attempt();
      if (fault === '') return;
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

  /** '' = connected, else why not. */
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
        if (isConnected) lost += 1;
        else end('closed');
      });
      this.#socket = socket;
    });
  }
}

let devices: Device[] = [];

async function carryOut(task: FleetTask): Promise<void> {
  failed = {};
  const cpuBefore = process.cpuUsage();
  if (task.kind === 'connect') devices = task.order.tokens.map((_, n) => new Device(task.order, n));
  const startedAtMs = Date.now();
  if (task.kind === 'storm') for (const device of devices) device.cut();
  let next = 0;
  const connectedAfterMs: number[] = [];
  const connectNext = async (): Promise<void> => {
    while (next < devices.length) {
      await devices[next++]!.connect();
      connectedAfterMs.push(Date.now() - startedAtMs);
    }
  };
  if (task.kind === 'tell') next = devices.length;
  const atOnce = task.kind === 'storm' ? devices.length : connectsAtOnce;
  await Promise.all(Array.from({ length: atOnce }, connectNext));
  const { user, system } = process.cpuUsage(cpuBefore);
  const cpuMs = (user + system) / 1000;
  const endedAtMs = Date.now();
  process.send!({
    kind: 'connected',
    ...{ startedAtMs, endedAtMs, failed, lost, cpuMs, connectedAfterMs },
  } satisfies FleetNote);
}

function elapse(milliseconds: number): Promise<void> {
  return new Promise((resolve) => setTimeout(resolve, milliseconds));
}

process.on('message', (task: FleetTask) => {
  carryOut(task).catch((error: Error) => {
    process.stderr.write(`${error.stack}\n`);
    process.exit(1);
  });
});
process.on('disconnect', () => process.exit(0));
