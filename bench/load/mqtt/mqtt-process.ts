/**
 * One generator process: MQTT connections with a window of unacknowledged QoS 1 publishes each. Closed loop (each
 * acknowledgement sends the next message) finds the peak; open loop sends at a fixed rate, and counts latency from the
 * millisecond in which a message was due, however late it left, so that a stalled server cannot hide its stall.
 */
import { connect, type Socket } from 'node:net';
import { Histogram } from '../histogram.ts';
import type { ProcessResult } from '../processes.ts';
import { connectPacket, devicePayload, gatewayPayload, type Level, PublishRing, packetType } from './mqtt-packets.ts';
import { PacketReader } from './packet-reader.ts';

export interface MqttClient {
  token: string;
  /** Names of a gateway's devices; empty = the sender is a device itself. */
  children: string[];
}

export interface MqttProcessOrder {
  host: string;
  port: number;
  clients: MqttClient[];
  /** Messages in flight on each connection. */
  window: number;
  /** Messages/s of this process; 0 = as fast as acknowledgements come. */
  rate: number;
  warmupMs: number;
  durationMs: number;
  firstTs: number;
  stepMs: number;
  level: Level;
}

export interface MqttProcessResult extends ProcessResult {
  /** Acknowledged in each tenth of a second, from `startedAtMs` (Unix time) on. */
  tenths: number[];
  startedAtMs: number;
}

const stallMsMax = 30_000;
const connectsAtOnce = 50;
const keepAliveSeconds = 600;
const tenthMs = 100;

// One for all sockets: what is read is used at once.
const received = Buffer.allocUnsafe(64 * 1024);

class Generator {
  readonly #order: MqttProcessOrder;
  readonly #histogram = new Histogram();
  readonly #connections: Connection[];
  /** Open loop: connections with a free slot, once for each, in the order in which they came free. */
  readonly #idle: Ring<Connection>;
  /** Due times of messages that wait for a free slot, oldest first. */
  #due: number[] = [];
  #dueHead = 0;
  #stopping = false;
  #measuring = false;
  #inFlight = 0;
  #accepted = 0;
  #measured = 0;
  #broken = 0;
  #startedAt = 0;
  readonly #tenths: number[] = [];
  readonly #refused: Record<string, number> = {};
  #drained: () => void = () => {};

  constructor(order: MqttProcessOrder) {
    this.#order = order;
    this.#connections = order.clients.map((client, n) => new Connection(client, order, n));
    this.#idle = new Ring(order.clients.length * order.window);
  }

  async run(): Promise<MqttProcessResult> {
    const { rate, warmupMs, durationMs } = this.#order;
    await this.#connectAll();
    const cpuAtStart = process.cpuUsage();
    const startedAtMs = Date.now();
    this.#startedAt = performance.now();
    if (rate > 0) this.#paceFrom(this.#startedAt, rate);
    else for (const connection of this.#connections) this.#fill(connection);
    await elapse(warmupMs);
    const measuredFrom = performance.now();
    this.#measuring = true;
    await elapse(durationMs);
    this.#measuring = false;
    const measuredMs = performance.now() - measuredFrom;
    const unsent = this.#due.length - this.#dueHead;
    await this.#stop();
    const cpu = process.cpuUsage(cpuAtStart);
    return {
      accepted: this.#accepted,
      measured: this.#measured,
      measuredMs,
      refused: this.#refused,
      broken: this.#broken,
      unsent,
      counts: [...this.#histogram.counts],
      maxMicroseconds: this.#histogram.max,
      cpuMs: (cpu.user + cpu.system) / 1000,
      elapsedMs: performance.now() - this.#startedAt,
      tenths: this.#tenths,
      startedAtMs,
    };
  }

  async #connectAll(): Promise<void> {
    let next = 0;
    const connectNext = async (): Promise<void> => {
      while (next < this.#connections.length) await this.#connect(this.#connections[next++]!);
    };
    await Promise.all(Array.from({ length: connectsAtOnce }, connectNext));
  }

  /** Resolves with the CONNACK. */
  #connect(connection: Connection): Promise<void> {
    const { host, port, window } = this.#order;
    const reader = new PacketReader();
    return new Promise((resolve, reject) => {
      const take = (firstByte: number, bytes: Buffer, start: number, end: number): void => {
        const type = firstByte >> 4;
        if (type === packetType.puback) {
          const slot = bytes.readUInt16BE(start) - 1;
          this.#acknowledged(connection, slot, end > start + 2 ? bytes[start + 2]! : 0);
        } else if (type === packetType.connack) {
          if (bytes[start + 1] === 0) resolve();
          else reject(new Error(`CONNACK ${bytes[start + 1]}`));
        } else if (type === packetType.disconnect) {
          this.#count(`DISCONNECT ${end > start ? bytes[start] : 0}`);
        }
      };
      const onread = {
        buffer: received,
        callback: (length: number) => {
          reader.read(received.subarray(0, length), take);
          connection.flush();
          return true;
        },
      };
      const socket = connect({ host, port, noDelay: true, onread });
      connection.socket = socket;
      if (this.#order.rate > 0) for (let n = 0; n < window; n += 1) this.#idle.push(connection);
      socket.once('connect', () => socket.write(connection.connectBytes));
      socket.on('error', reject);
      socket.on('close', () => {
        reject(new Error('closed before CONNACK'));
        this.#closed(connection);
      });
    });
  }

  #fill(connection: Connection): void {
    for (let slot = 0; slot < this.#order.window; slot += 1) this.#send(connection, slot, performance.now());
    connection.flush();
  }

  /** The packet is sent with the next `flush` of the connection. */
  #send(connection: Connection, slot: number, dueAt: number): void {
    connection.prepare(slot, dueAt);
    this.#inFlight += 1;
  }

  #acknowledged(connection: Connection, slot: number, code: number): void {
    const dueAt = connection.release(slot);
    if (dueAt === undefined) {
      this.#count('unexpected');
      return;
    }
    this.#inFlight -= 1;
    const now = performance.now();
    if (code < 0x80) {
      this.#accepted += 1;
      const tenth = Math.floor((now - this.#startedAt) / tenthMs);
      this.#tenths[tenth] = (this.#tenths[tenth] ?? 0) + 1;
      if (this.#measuring) {
        this.#measured += 1;
        this.#histogram.record((now - dueAt) * 1000);
      }
    } else {
      this.#count(`0x${code.toString(16)}`);
    }
    if (this.#stopping) {
      if (this.#inFlight === 0) this.#drained();
    } else if (this.#order.rate === 0) {
      this.#send(connection, slot, now);
    } else if (this.#dueHead < this.#due.length) {
      this.#send(connection, slot, this.#due[this.#dueHead++]!);
    } else {
      this.#idle.push(connection);
    }
  }

  #count(what: string): void {
    this.#refused[what] = (this.#refused[what] ?? 0) + 1;
  }

  /** One tick a millisecond; a late tick catches up, with the due times it should have had. */
  #paceFrom(startedAt: number, rate: number): void {
    let scheduled = 0;
    let ticks = 0;
    const touched = new Set<Connection>();
    const tick = (): void => {
      if (this.#stopping) return;
      const now = performance.now();
      for (; startedAt + ticks <= now; ticks += 1) {
        const target = Math.floor(((ticks + 1) * rate) / 1000);
        for (; scheduled < target; scheduled += 1) {
          const connection = this.#schedule(startedAt + ticks);
          if (connection) touched.add(connection);
        }
      }
      for (const connection of touched) connection.flush();
      touched.clear();
      if (this.#dueHead > 65_536) {
        this.#due = this.#due.slice(this.#dueHead);
        this.#dueHead = 0;
      }
      setTimeout(tick, 1);
    };
    tick();
  }

  #schedule(dueAt: number): Connection | undefined {
    for (;;) {
      const connection = this.#idle.shift();
      if (!connection) {
        this.#due.push(dueAt);
        return undefined;
      }
      const slot = connection.freeSlot();
      if (slot === undefined) continue;
      this.#send(connection, slot, dueAt);
      return connection;
    }
  }

  #closed(connection: Connection): void {
    const lost = connection.lose();
    this.#inFlight -= lost;
    this.#broken += 1;
    if (this.#stopping && this.#inFlight === 0) this.#drained();
  }

  /** No more messages; waits for the acknowledgements that are still out. */
  async #stop(): Promise<void> {
    const drained = new Promise<void>((resolve) => {
      this.#drained = resolve;
    });
    this.#stopping = true;
    if (this.#inFlight > 0) await Promise.race([drained, elapse(stallMsMax)]);
  }
}

/** A socket, and which of its packet ids are in flight since when. */
class Connection {
  socket: Socket | undefined;
  readonly connectBytes: Buffer;
  readonly #ring: PublishRing;
  /** Due time of the message of each slot; -1 = the slot is free. */
  readonly #dueAt: Float64Array;
  #nextSlot = 0;
  /** Slots in a row that are ready to leave. */
  #readyFrom = 0;
  #ready = 0;

  constructor({ token, children }: MqttClient, order: MqttProcessOrder, n: number) {
    const { window, stepMs, level } = order;
    this.connectBytes = connectPacket({ clientId: token, username: token, keepAliveSeconds, level });
    const topic = children.length > 0 ? 'v1/gateway/telemetry' : 'v1/devices/me/telemetry';
    const payload = children.length > 0 ? gatewayPayload(children) : devicePayload;
    // Each connection starts at another step, so that random walks differ.
    this.#ring = new PublishRing(topic, payload, window, order.firstTs + (n % stepMs), stepMs, level);
    this.#dueAt = new Float64Array(window).fill(-1);
  }

  prepare(slot: number, dueAt: number): void {
    this.#ring.move(slot);
    this.#dueAt[slot] = dueAt;
    if (this.#ready > 0 && slot !== this.#readyFrom + this.#ready) this.flush();
    if (this.#ready === 0) this.#readyFrom = slot;
    this.#ready += 1;
  }

  /** A packet stays as it is until its acknowledgement, so the socket may send it when it likes. */
  flush(): void {
    if (this.#ready === 0) return;
    this.socket!.write(this.#ring.bytes(this.#readyFrom, this.#ready));
    this.#ready = 0;
  }

  /** Returns the due time of its message; undefined when there was none. */
  release(slot: number): number | undefined {
    const dueAt = this.#dueAt[slot];
    if (dueAt === undefined || dueAt < 0) return undefined;
    this.#dueAt[slot] = -1;
    return dueAt;
  }

  /** The slots take turns, so that no packet id gets far ahead with its ts. */
  freeSlot(): number | undefined {
    let slot = this.#dueAt.indexOf(-1, this.#nextSlot);
    if (slot < 0) slot = this.#dueAt.indexOf(-1);
    this.#nextSlot = slot + 1;
    return slot < 0 ? undefined : slot;
  }

  /** Returns the messages in flight. Their slots stay taken, because no more messages are sent on the connection. */
  lose(): number {
    const lost = this.#dueAt.reduce((sum, dueAt) => sum + (dueAt >= 0 ? 1 : 0), 0);
    this.#dueAt.fill(Number.POSITIVE_INFINITY);
    this.#ready = 0;
    return lost;
  }
}

/** First in, first out, of a fixed size. */
class Ring<T> {
  readonly #items: (T | undefined)[];
  #head = 0;
  #length = 0;

  constructor(size: number) {
    this.#items = new Array<T | undefined>(size);
  }

  push(item: T): void {
    this.#items[(this.#head + this.#length) % this.#items.length] = item;
    this.#length += 1;
  }

  shift(): T | undefined {
    if (this.#length === 0) return undefined;
    const item = this.#items[this.#head];
    this.#items[this.#head] = undefined;
    this.#head = (this.#head + 1) % this.#items.length;
    this.#length -= 1;
    return item;
  }
}

function elapse(milliseconds: number): Promise<void> {
  return new Promise((resolve) => setTimeout(resolve, milliseconds));
}

process.once('message', (order: MqttProcessOrder) => {
  new Generator(order).run().then(
    (result) => process.send!(result, () => process.exit(0)),
    (error: Error) => {
      process.stderr.write(`${error.stack}\n`);
      process.exit(1);
    },
  );
});
