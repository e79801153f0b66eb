/**
 * One gateway of a large site, in a separate process: connects its devices, sends a message for each of them every
 * second, and replies to commands. The parent gives the tasks; times are measured here.
 */
import { connect, type Socket } from 'node:net';
import { setTimeout as sleep } from 'node:timers/promises';
import { refusedText } from '../counts.ts';
import { Histogram, type LatencySummary, summaryOf } from '../histogram.ts';
import {
  connectPacket,
  gatewayText,
  packetType,
  pubackPacket,
  publishPacket,
  type RingOrder,
  subscribePacket,
  TurnRing,
} from './mqtt-packets.ts';
import { PacketReader } from './packet-reader.ts';

export interface SiteOrder {
  host: string;
  port: number;
  token: string;
  /** Names of one length. */
  children: string[];
  firstTs: number;
  /** An attempt to connect that has no answer after this time has failed. */
  connackMs: number;
}

/** The tasks of the parent; each is answered by a note of the same kind. */
export type SiteTask =
  | { kind: 'connect'; order: SiteOrder }
  | { kind: 'send'; seconds: number }
  | { kind: 'reconnect' };

export type SiteNote =
  /** The task cannot be carried out; the process ends. */
  | { kind: 'failed'; sentence: string }
  | { kind: 'connect' | 'reconnect'; seconds: number; refused: Record<string, number> }
  | { kind: 'send'; sent: SiteSent }
  | { kind: 'attributes'; device: string };

export interface SiteSent {
  accepted: number;
  refused: Record<string, number>;
  /** Messages that were not sent in their second because the one before was not acknowledged. */
  late: number;
  latency: LatencySummary;
  cpuShare: number;
}

const level = 5;
const keepAliveSeconds = 600;
const subscriptions = ['v1/gateway/attributes', 'v1/gateway/attributes/response', 'v1/gateway/rpc'];
/** Below the Receive Maximum of the server. */
const inFlightMax = 500;
const ackMsMax = 30_000;
/** Attempts that had no answer. */
const silentTriesMax = 3;
const connectTriesMax = 20;
const retryMs = 500;
const noConnack = 'no CONNACK';

class Site {
  readonly #order: SiteOrder;
  readonly #ring: TurnRing;
  /** Due time of the message with this packet id, -1 = none is in flight. */
  readonly #dueAt = new Float64Array(65_536).fill(-1);
  #socket: Socket | undefined;
  #inFlight = 0;
  #refused: Record<string, number> = {};
  #histogram = new Histogram();
  #accepted = 0;
  #wake: () => void = () => {};

  constructor(order: SiteOrder) {
    this.#order = order;
    const { children, firstTs } = order;
    const slots = children.length;
    const ring: RingOrder = { topic: 'v1/gateway/telemetry', slots, firstTs, stepMs: 1, level, qos: 1, seed: 0 };
    this.#ring = new TurnRing(ring, (ts, slot) => gatewayText([children[slot]!], ts));
  }

  /** Resolves when every device of the gateway is connected. */
  async connect(): Promise<{ seconds: number; refused: Record<string, number> }> {
    const startedAt = performance.now();
    this.#refused = {};
    await this.#open();
    for (const [n, filter] of subscriptions.entries()) this.#socket!.write(subscribePacket(filter, n + 1, level));
    for (const [n, device] of this.#order.children.entries()) {
      while (this.#inFlight >= inFlightMax) await this.#answered();
      this.#take(n + 1, performance.now());
      this.#socket!.write(publishPacket('v1/gateway/connect', JSON.stringify({ device }), n + 1, level));
    }
    await this.#allAnswered();
    return { seconds: (performance.now() - startedAt) / 1000, refused: this.#refused };
  }

  /** The connection breaks without a word; the same gateway comes back. */
  reconnect(): Promise<{ seconds: number; refused: Record<string, number> }> {
    this.#socket!.removeAllListeners('close').resetAndDestroy();
    this.#dueAt.fill(-1);
    this.#inFlight = 0;
    return this.connect();
  }

  async send(seconds: number): Promise<SiteSent> {
    const { length } = this.#order.children;
    const cpuAtStart = process.cpuUsage();
    const startedAt = performance.now();
    this.#histogram = new Histogram();
    this.#refused = {};
    this.#accepted = 0;
    let late = 0;
    let next = 0;
    const total = seconds * length;
    while (next < total) {
      const due = Math.min(total, Math.floor(((performance.now() - startedAt) * length) / 1000));
      for (; next < due && this.#inFlight < inFlightMax; next += 1) {
        const slot = next % length;
        if (this.#dueAt[slot + 1]! >= 0) {
          late += 1;
          continue;
        }
        this.#ring.move(slot);
        this.#take(slot + 1, startedAt + (next * 1000) / length);
        this.#socket!.write(this.#ring.bytes(slot, 1));
      }
      await sleep(1);
    }
    await this.#allAnswered();
    const cpu = process.cpuUsage(cpuAtStart);
    const cpuShare = (cpu.user + cpu.system) / 1000 / (performance.now() - startedAt);
    return {
      accepted: this.#accepted,
      refused: this.#refused,
      late,
      latency: summaryOf(this.#histogram),
      cpuShare,
    };
  }

  /** A refused attempt is counted and repeated. */
  async #open(): Promise<void> {
    for (let tries = 1; ; tries += 1) {
      const fault = await this.#attempt();
      if (fault === '') return;
      this.#count(fault);
      const isLast = tries === connectTriesMax || this.#refused[noConnack] === silentTriesMax;
      if (isLast) throw new Error(`it cannot connect: ${refusedText(this.#refused)}`);
      await sleep(retryMs);
    }
  }

  /** Resolves with '' when connected, else with the reason. */
  #attempt(): Promise<string> {
    const { host, port, token, connackMs } = this.#order;
    const reader = new PacketReader();
    const socket = connect({ host, port, noDelay: true });
    this.#socket = socket;
    return new Promise((resolve) => {
      let isConnected = false;
      const deadline = setTimeout(() => {
        resolve(noConnack);
        socket.destroy();
      }, connackMs);
      socket.on('data', (piece: Buffer) => {
        socket.cork();
        reader.read(piece, (firstByte, bytes, start, end) => {
          const type = firstByte >> 4;
          if (type === packetType.connack) {
            clearTimeout(deadline);
            isConnected = bytes[start + 1] === 0;
            resolve(isConnected ? '' : `CONNACK ${bytes[start + 1]}`);
            if (!isConnected) socket.destroy();
          } else if (type === packetType.puback) {
            this.#acknowledged(bytes.readUInt16BE(start), end > start + 2 ? bytes[start + 2]! : 0);
          } else if (type === packetType.publish) {
            this.#receive(firstByte, bytes.subarray(start, end));
          } else if (type === packetType.disconnect) {
            this.#count(`DISCONNECT ${bytes[start]}`);
          }
        });
        socket.uncork();
      });
      socket.on('error', ({ code, message }: NodeJS.ErrnoException) => resolve(`${code ?? message} at the connect`));
      socket.on('close', () => {
        clearTimeout(deadline);
        if (isConnected) fail(new Error(`the connection of the gateway was closed; ${JSON.stringify(this.#refused)}`));
        else resolve('closed before CONNACK');
      });
      socket.once('connect', () => {
        socket.write(connectPacket({ clientId: token, username: token, keepAliveSeconds, level }));
      });
    });
  }

  #receive(firstByte: number, body: Buffer): void {
    const topicEnd = 2 + body.readUInt16BE(0);
    const topic = body.toString('utf8', 2, topicEnd);
    const hasId = (firstByte & 0x06) !== 0;
    const propertiesAt = topicEnd + (hasId ? 2 : 0);
    if (hasId) this.#socket!.write(pubackPacket(body.readUInt16BE(topicEnd)));
    const message = JSON.parse(body.toString('utf8', propertiesAt + 1 + body[propertiesAt]!)) as {
      device: string;
      data: { id: number; params: unknown };
    };
    if (topic === 'v1/gateway/attributes') tell({ kind: 'attributes', device: message.device });
    if (topic !== 'v1/gateway/rpc') return;
    const { device, data } = message;
    const reply = JSON.stringify({ device, id: data.id, data: { n: data.params } });
    this.#socket!.write(publishPacket('v1/gateway/rpc', reply, 65_535, level));
  }

  #take(packetId: number, dueAt: number): void {
    this.#dueAt[packetId] = dueAt;
    this.#inFlight += 1;
  }

  #acknowledged(packetId: number, code: number): void {
    if (code >= 0x80) this.#count(`0x${code.toString(16)}`);
    const dueAt = this.#dueAt[packetId]!;
    // A reply to a command.
    if (dueAt < 0) return;
    this.#dueAt[packetId] = -1;
    this.#inFlight -= 1;
    if (code < 0x80) {
      this.#accepted += 1;
      this.#histogram.record((performance.now() - dueAt) * 1000);
    }
    this.#wake();
  }

  #count(what: string): void {
    this.#refused[what] = (this.#refused[what] ?? 0) + 1;
  }

  async #allAnswered(): Promise<void> {
    while (this.#inFlight > 0) await this.#answered();
  }

  #answered(): Promise<void> {
    return new Promise((resolve, reject) => {
      const timer = setTimeout(() => reject(new Error(`no acknowledgement within ${ackMsMax / 1000} s`)), ackMsMax);
      this.#wake = () => {
        clearTimeout(timer);
        resolve();
      };
    });
  }
}

function tell(note: SiteNote): void {
  if (process.connected) process.send!(note);
}

function fail({ message }: Error): void {
  process.send!({ kind: 'failed', sentence: message } satisfies SiteNote, () => process.exit(1));
}

let site: Site;

async function carryOut(task: SiteTask): Promise<void> {
  if (task.kind === 'connect') {
    site = new Site(task.order);
    tell({ kind: 'connect', ...(await site.connect()) });
  } else if (task.kind === 'send') {
    tell({ kind: 'send', sent: await site.send(task.seconds) });
  } else {
    tell({ kind: 'reconnect', ...(await site.reconnect()) });
  }
}

process.on('message', (task: SiteTask) => void carryOut(task).catch(fail));
process.on('disconnect', () => process.exit(0));
