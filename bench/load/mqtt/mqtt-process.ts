/**
 * One generator process: MQTT connections with a window of unacknowledged QoS 1 publishes each. Closed loop (each
 * acknowledgement sends the next message) finds the peak; open loop sends at a fixed rate, and counts latency from the
 * millisecond in which a message was due, however late it left, so that a stalled server cannot hide its stall.
 */
import { setTimeout as sleep } from 'node:timers/promises';
import { Counting } from '../counting.ts';
import { type Course, serveOrder } from '../generator-process.ts';
import { openSocket, type Place } from '../open-socket.ts';
import { DueTimes, Pace } from '../pace.ts';
import type { ProcessResult } from '../processes.ts';
import { packetType } from './mqtt-packets.ts';
import { PacketReader } from './packet-reader.ts';
import { reasonString, refusalText, refusedFrom } from './refusals.ts';
import { type MqttClient, WindowedConnection, type WindowOptions } from './windowed-connection.ts';

export interface MqttProcessOrder extends Place, WindowOptions {
  clients: MqttClient[];
  /** Messages/s of this process; 0 = as fast as acknowledgements come. */
  rate: number;
  /** Time before the warm-up in which the rate grows from 0. */
  rampMs: number;
  warmupMs: number;
  durationMs: number;
  /** An attempt to connect that has no answer after this time has failed. */
  connackMs: number;
  /** True: a connection that was lost is made again. False: it sends nothing more. */
  reconnects: boolean;
  /** Not 0: so long after the first message, this share of the connections is cut off. */
  cutAtMs: number;
  cutShare: number;
}

const stallMsMax = 30_000;
/** A load without an end of its own has ended when nothing was answered for so long. */
const silenceMsMax = 60_000;
const silenceAskedMs = 1_000;
const connectsAtOnce = 50;
const connectTriesMax = 20;
const retryMs = 1_000;
const noConnack = 'no CONNACK';
/** A server of another protocol answers a CONNECT, too. */
const noMqtt = 'no CONNACK but other bytes (is it a port of MQTT?)';

// One for all sockets: what is read is used at once.
const received = Buffer.allocUnsafe(64 * 1024);

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

  remove(item: T): void {
    for (let left = this.#length; left > 0; left -= 1) {
      const first = this.shift()!;
      if (first !== item) this.push(first);
    }
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

class Generator {
  readonly #order: MqttProcessOrder;
  readonly #due = new DueTimes();
  readonly #counting: Counting;
  readonly #connections: WindowedConnection[];
  /** Open loop: connections with a free slot, once for each, in the order in which they came free. */
  readonly #idle: Ring<WindowedConnection>;
  #hasBegun = false;
  /** An attempt had no answer before the run: further connections would wait as long for nothing. */
  #isSilent = false;
  #stopping = false;
  #answeredAt = 0;
  #inFlight = 0;
  #drained: () => void = () => {};

  constructor(order: MqttProcessOrder) {
    this.#order = order;
    this.#counting = new Counting(
      () => this.#due.length,
      () => this.#inFlight,
    );
    // Without acknowledgements, what the kernel has taken makes room for the next messages.
    const written = (connection: WindowedConnection, slots: number[]) => {
      for (const slot of slots) this.#acknowledged(connection, slot, 0);
      connection.flush();
    };
    const onWritten = order.qos === 0 ? written : undefined;
    this.#connections = order.clients.map((client, n) => new WindowedConnection(client, order, n, onWritten));
    this.#idle = new Ring(order.clients.length * order.window);
  }

  async run({ connected, stopped }: Course): Promise<ProcessResult> {
    const { rate, rampMs, turns, warmupMs, durationMs } = this.#order;
    await this.#connectAll();
    await connected(this.#connections.filter(({ socket }) => socket !== undefined).length);
    this.#hasBegun = true;
    const startedAt = this.#counting.begin();
    const pace = new Pace({ rate, rampMs });
    if (rate > 0) this.#paceFrom(startedAt, pace);
    else {
      for (const connection of this.#connections) {
        this.#sendNext(connection, startedAt);
        connection.flush();
      }
    }
    if (this.#order.cutAtMs > 0) setTimeout(() => this.#cut(), this.#order.cutAtMs);
    const measured = () => (turns > 0 ? this.#allSent() : sleep(durationMs));
    await this.#counting.measure({ leadMs: rampMs + warmupMs, measured, stopped });
    pace.stop();
    await this.#stop(stopped);
    return this.#counting.end();
  }

  async #connectAll(): Promise<void> {
    let next = 0;
    const connectNext = async (): Promise<void> => {
      while (next < this.#connections.length && !this.#isSilent) await this.#connect(this.#connections[next++]!);
    };
    await Promise.all(Array.from({ length: connectsAtOnce }, connectNext));
    if (!this.#order.drawn) return;
    this.#answeredAt = performance.now();
    const joined = Promise.all(this.#connections.map((connection) => connection.join())).then(() => true);
    const isJoined = await Promise.race([joined, this.#silence().then(() => false)]);
    if (!isJoined) this.#counting.refuse(`devices of gateways not connected: no answer for ${silenceMsMax / 1000} s`);
  }

  /** Resolves when nothing was answered for a while. */
  async #silence(): Promise<void> {
    while (performance.now() - this.#answeredAt < silenceMsMax) await sleep(silenceAskedMs, undefined, { ref: false });
  }

  /**
   * A refused attempt is counted and repeated. A connection that is refused each time before the run, or is not
   * answered, sends nothing; in the run the attempts go on to its end.
   */
  async #connect(connection: WindowedConnection): Promise<void> {
    for (let tries = 0; (tries < connectTriesMax || this.#hasBegun) && !this.#stopping; tries += 1) {
      const fault = await this.#attempt(connection);
      if (fault === '') return;
      this.#counting.refuse(fault);
      if (fault === noConnack && !this.#hasBegun) this.#isSilent = true;
      if (this.#isSilent && !this.#hasBegun) return;
      await sleep(retryMs * (0.5 + Math.random()));
    }
  }

  /** Resolves with the CONNACK; '' = connected, else why not. */
  #attempt(connection: WindowedConnection): Promise<string> {
    const { window, rate, level, connackMs } = this.#order;
    const reader = new PacketReader();
    return new Promise<string>((resolve) => {
      let isConnected = false;
      const deadline = setTimeout(() => {
        resolve(noConnack);
        socket.destroy();
      }, connackMs);
      const take = (firstByte: number, bytes: Buffer, start: number, end: number): void => {
        const type = firstByte >> 4;
        if (!isConnected && type !== packetType.connack && type !== packetType.disconnect) {
          resolve(noMqtt);
          socket.destroy();
        } else if (type === packetType.puback) {
          const code = end > start + 2 ? bytes[start + 2]! : 0;
          const text = code >= refusedFrom && end > start + 3 ? reasonString(bytes, start + 3, end) : '';
          this.#answered(connection, bytes.readUInt16BE(start), code, text);
        } else if (type === packetType.connack) {
          const code = bytes[start + 1]!;
          isConnected = code === 0;
          if (!isConnected) {
            resolve(refusalText('CONNACK', code, level === 5 ? reasonString(bytes, start + 2, end) : ''));
            socket.destroy();
            return;
          }
          clearTimeout(deadline);
          connection.socket = socket;
          if (rate > 0) for (let n = 0; n < window; n += 1) this.#idle.push(connection);
          resolve('');
        } else if (type === packetType.disconnect) {
          const text = end > start + 1 ? reasonString(bytes, start + 1, end) : '';
          this.#counting.refuse(refusalText('DISCONNECT', end > start ? bytes[start]! : 0, text));
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
      const socket = openSocket(this.#order, onread, () => socket.write(connection.connectBytes));
      socket.on('error', ({ code, message }: NodeJS.ErrnoException) => resolve(`${code ?? message} at the connect`));
      socket.on('close', () => {
        clearTimeout(deadline);
        if (isConnected) this.#closed(connection);
        else resolve('closed before CONNACK');
      });
    });
  }

  /** Closed loop: fills the window. The packets are sent with the next `flush` of the connection. */
  #sendNext(connection: WindowedConnection, now: number): void {
    for (let slot = connection.nextSlot(); slot !== undefined; slot = connection.nextSlot()) {
      this.#send(connection, slot, now);
    }
  }

  /** The packet is sent with the next `flush` of the connection. */
  #send(connection: WindowedConnection, slot: number, dueAt: number): void {
    connection.prepare(slot, dueAt);
    if (this.#order.rate > 0) this.#counting.sent(dueAt, performance.now());
    this.#inFlight += 1;
  }

  /** `text`: what the server says of a refusal. */
  #answered(connection: WindowedConnection, packetId: number, code: number, text: string): void {
    if (connection.isJoining) {
      this.#answeredAt = performance.now();
      if (code >= refusedFrom) this.#counting.refuse(refusalText('PUBACK', code, text));
      connection.joinNext(packetId);
    } else {
      this.#acknowledged(connection, packetId - 1, code, text);
    }
  }

  #acknowledged(connection: WindowedConnection, slot: number, code: number, text = ''): void {
    const dueAt = connection.release(slot);
    if (dueAt === undefined) {
      this.#counting.refuse('unexpected');
      return;
    }
    this.#inFlight -= 1;
    const now = performance.now();
    this.#answeredAt = now;
    if (code < refusedFrom) this.#counting.acknowledged(dueAt, now);
    else this.#counting.refuse(refusalText('PUBACK', code, text));
    if (this.#stopping) {
      if (this.#inFlight === 0) this.#drained();
    } else if (this.#order.rate === 0) {
      this.#sendNext(connection, now);
      if (this.#inFlight === 0) this.#drained();
    } else {
      const next = this.#due.shift();
      if (next === undefined) this.#idle.push(connection);
      else this.#send(connection, slot, next);
    }
  }

  #paceFrom(startedAt: number, pace: Pace): void {
    const touched = new Set<WindowedConnection>();
    const due = (at: number): void => {
      const connection = this.#schedule(at);
      if (connection) touched.add(connection);
    };
    pace.start(startedAt, due, () => {
      for (const connection of touched) connection.flush();
      touched.clear();
    });
  }

  #schedule(dueAt: number): WindowedConnection | undefined {
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

  #closed(connection: WindowedConnection): void {
    const { reconnects, rate } = this.#order;
    const goesOn = reconnects && !this.#stopping;
    const lost = connection.lose(goesOn);
    this.#inFlight -= lost;
    this.#counting.breakOff(lost);
    if (this.#inFlight === 0 && !goesOn) this.#drained();
    if (!goesOn) return;
    this.#idle.remove(connection);
    void this.#connect(connection).then(() => {
      if (rate > 0 || this.#stopping || connection.socket === undefined) return;
      this.#sendNext(connection, performance.now());
      connection.flush();
    });
  }

  /** Ends some connections as a lost network does: without DISCONNECT or FIN. */
  #cut(): void {
    const count = Math.ceil(this.#connections.length * this.#order.cutShare);
    for (const { socket } of this.#connections.slice(0, count)) socket?.resetAndDestroy();
  }

  /** Resolves when no connection has another message, or nothing is answered any more. */
  #allSent(): Promise<void> {
    this.#answeredAt = performance.now();
    const drained = new Promise<void>((resolve) => {
      this.#drained = resolve;
      if (this.#inFlight === 0) resolve();
    });
    return Promise.race([drained, this.#silence()]);
  }

  /** No more messages; waits for the acknowledgements that are still out, unless the load is stopped. */
  async #stop(stopped: Promise<void>): Promise<void> {
    const drained = new Promise<void>((resolve) => {
      this.#drained = resolve;
    });
    this.#stopping = true;
    if (this.#inFlight > 0) await Promise.race([drained, stopped, sleep(stallMsMax)]);
    this.#counting.giveUp(this.#inFlight);
  }
}

serveOrder((order: MqttProcessOrder, connected) => new Generator(order).run(connected));
