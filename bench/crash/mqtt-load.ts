/**
 * Sends the load of `load.ts` over MQTT: each device has one connection and publishes at QoS 1 with a window, every
 * other one in MQTT 5. A record is acknowledged by its PUBACK, refused by a PUBACK with a code, and unanswered when the
 * connection broke.
 */
import { connect, type Socket } from 'node:net';
import { setTimeout as sleep } from 'node:timers/promises';
import { connectPacket, type Level, packetType, publishPacket } from '../load/mqtt/mqtt-packets.ts';
import { PacketReader } from '../load/mqtt/packet-reader.ts';
import { Fate, type Ledger, type RecordId } from './ledger.ts';

const topic = 'v1/devices/me/telemetry';
const window = 8;
const reconnectMs = 20;
/** A connection is given up after this time without a packet from the engine. */
const silenceMsMax = 10_000;

interface CrashMqttLoadOptions {
  port: number;
  tokens: string[];
  /** Messages/s offered over all connections. */
  rate: number;
  ledger: Ledger;
}

export class CrashMqttLoad {
  readonly #options: CrashMqttLoadOptions;
  readonly #loops: Promise<void>[];
  #stopping = false;
  /** Acknowledgements by reason code; -1 = the connection broke first. */
  readonly answers: Record<number, number> = {};

  constructor(options: CrashMqttLoadOptions) {
    this.#options = options;
    this.#loops = options.tokens.map((token, device) => this.#loop(token, device));
  }

  async stop(): Promise<void> {
    this.#stopping = true;
    await Promise.all(this.#loops);
  }

  async #loop(token: string, device: number): Promise<void> {
    const { tokens, rate, ledger, port } = this.#options;
    const pauseMs = (tokens.length * 1000) / rate;
    const level = device % 2 === 0 ? 4 : 5;
    const settle = (record: RecordId, code: number) => {
      this.answers[code] = (this.answers[code] ?? 0) + 1;
      if (code >= 0) ledger.settle([record], code < 0x80 ? Fate.acknowledged : Fate.refused);
    };
    while (!this.#stopping) {
      const publisher = await Publisher.open(port, token, level, settle);
      if (!publisher) {
        await sleep(reconnectMs);
        continue;
      }
      while (!this.#stopping && !publisher.ended) {
        if (publisher.hasRoom) {
          const [record] = ledger.take(device);
          if (!record) return publisher.close();
          publisher.publish(record, ledger.bodyOf([record]));
        }
        await sleep(pauseMs);
      }
      await publisher.close();
    }
  }
}

/** One connection that may break at any moment. */
class Publisher {
  ended = false;
  readonly #socket: Socket;
  readonly #level: Level;
  readonly #settle: (record: RecordId, code: number) => void;
  /** Record by packet id, in the order of sending, which is the order of the acknowledgements. */
  readonly #waiting = new Map<number, RecordId>();
  #nextId = 1;
  #welcome: (isIn: boolean) => void = () => {};
  #settled: () => void = () => {};

  private constructor(socket: Socket, level: Level, settle: (record: RecordId, code: number) => void) {
    this.#socket = socket;
    this.#level = level;
    this.#settle = settle;
    const reader = new PacketReader();
    socket.on('data', (bytes: Buffer) => {
      reader.read(bytes, (first, packet, start, end) => this.#take(first >> 4, packet.subarray(start, end)));
    });
    socket.setTimeout(silenceMsMax, () => socket.destroy());
    socket.on('error', () => {});
    socket.on('close', () => this.#end());
  }

  /** Returns undefined when no worker accepts the connection. */
  static open(
    port: number,
    token: string,
    level: Level,
    settle: (record: RecordId, code: number) => void,
  ): Promise<Publisher | undefined> {
    const socket = connect({ port, host: '127.0.0.1', noDelay: true });
    const publisher = new Publisher(socket, level, settle);
    const connectBytes = connectPacket({ clientId: token.slice(0, 20), username: token, keepAliveSeconds: 60, level });
    socket.on('connect', () => socket.write(connectBytes));
    return new Promise((resolve) => {
      publisher.#welcome = (isIn) => resolve(isIn ? publisher : undefined);
    });
  }

  get hasRoom(): boolean {
    return this.#waiting.size < window;
  }

  publish(record: RecordId, body: string): void {
    const id = this.#nextId;
    this.#nextId = (id % 65_535) + 1;
    this.#waiting.set(id, record);
    this.#socket.write(publishPacket(topic, body, id, this.#level));
  }

  /** Waits for packets in flight, then ends. */
  async close(): Promise<void> {
    if (!this.ended && this.#waiting.size > 0) await new Promise<void>((resolve) => (this.#settled = resolve));
    this.#socket.destroy();
  }

  #take(type: number, body: Buffer): void {
    if (type === packetType.connack) {
      if (body[1] === 0) this.#welcome(true);
      else this.#socket.destroy();
    }
    if (type !== packetType.puback) return;
    const id = body.readUInt16BE(0);
    const record = this.#waiting.get(id);
    if (!record) throw new Error(`PUBACK ${id} that nothing waits for`);
    const [oldest] = this.#waiting.keys();
    if (oldest !== id) throw new Error(`PUBACK ${id} before that of ${oldest}`);
    this.#waiting.delete(id);
    this.#settle(record, body[2] ?? 0);
    if (this.#waiting.size === 0) this.#settled();
  }

  #end(): void {
    this.ended = true;
    for (const record of this.#waiting.values()) this.#settle(record, -1);
    this.#waiting.clear();
    this.#settled();
    this.#welcome(false);
  }
}
