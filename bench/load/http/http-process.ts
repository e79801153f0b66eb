/**
 * One generator process: keep-alive sockets with one request in flight each. Closed loop (each answer sends the next
 * request) finds the peak; open loop sends at a fixed rate in bursts of one millisecond, and counts latency from the
 * millisecond in which a request was due, however late it left, so that a stalled server cannot hide its stall.
 */
import { connect, type Socket } from 'node:net';
import { Counting } from '../counting.ts';
import { serveOrder } from '../generator-process.ts';
import { DueTimes, Pace } from '../pace.ts';
import type { ProcessResult } from '../processes.ts';
import { AnswerReader } from './answer-reader.ts';
import { DeviceRequest, DrawnRequests, InTurn, type MessageKind, type Requests } from './requests.ts';

export interface ProcessOrder {
  host: string;
  port: number;
  tokens: string[];
  sockets: number;
  /** Requests/s of this process; 0 = as fast as answers come. */
  rate: number;
  /** Time before the warm-up in which the rate grows from 0. */
  rampMs: number;
  warmupMs: number;
  durationMs: number;
  firstTs: number;
  stepMs: number;
  kind: MessageKind;
  /** Points of each record of telemetry. */
  points: number;
  /** True: each message is of a device drawn at random. False: the devices take turns. */
  drawn: boolean;
}

export interface HttpProcessResult extends ProcessResult {
  /** Token and `ts` of the last request of each device that sent any; empty when devices are drawn. */
  lastTs: [token: string, ts: number][];
}

const okStatus = 0x32;
const lineFeed = 10;
const stallMsMax = 30_000;
const connectTriesMax = 20;
const retryMs = 500;

class Generator {
  readonly #order: ProcessOrder;
  readonly #idle: Slot[] = [];
  readonly #due = new DueTimes();
  readonly #counting = new Counting(() => this.#due.length);
  #stopping = false;
  #open = 0;
  #drained: () => void = () => {};

  constructor(order: ProcessOrder) {
    this.#order = order;
  }

  async run(connected: () => Promise<void>): Promise<HttpProcessResult> {
    const { sockets, tokens, firstTs, stepMs, kind, points, drawn, rate, rampMs, warmupMs, durationMs } = this.#order;
    const form = { firstTs, stepMs, kind, points };
    const requests = drawn ? [] : tokens.map((token, n) => new DeviceRequest(token, form, n * 2_654_435_761));
    const all = { tokens, sent: new Uint32Array(tokens.length) };
    const slots = Array.from({ length: sockets }, (_, n) => {
      if (drawn) return new Slot(new DrawnRequests(all, form, n * 2_654_435_761));
      // Each device belongs to one socket: its buffer is never changed while it is being sent.
      return new Slot(new InTurn(requests.filter((__, device) => device % sockets === n)));
    });
    await Promise.all(slots.map((slot) => this.#connect(slot)));
    await connected();
    const startedAt = this.#counting.begin();
    const pace = new Pace({ rate, rampMs });
    const ready = slots.filter(({ isConnected }) => isConnected);
    if (rate > 0) {
      this.#idle.push(...ready);
      pace.start(startedAt, (dueAt) => this.#schedule(dueAt));
    } else {
      for (const slot of ready) this.#send(slot, performance.now());
    }
    await elapse(rampMs + warmupMs);
    this.#counting.beginMeasuring();
    await elapse(durationMs);
    this.#counting.endMeasuring();
    pace.stop();
    await this.#stop();
    return {
      ...this.#counting.end(),
      lastTs: requests.flatMap((request, n) => (request.sent > 0 ? [[tokens[n]!, request.ts]] : [])),
    };
  }

  /** A refused attempt is counted and repeated. A socket that is refused each time sends nothing. */
  async #connect(slot: Slot): Promise<void> {
    for (let tries = 0; tries < connectTriesMax && !this.#stopping; tries += 1) {
      const fault = await this.#attempt(slot);
      if (fault === '') return;
      this.#counting.refuse(fault);
      await elapse(retryMs * (0.5 + Math.random()));
    }
  }

  /** Resolves with '' when connected, else with the reason. */
  #attempt(slot: Slot): Promise<string> {
    const { host, port } = this.#order;
    return new Promise((resolve) => {
      const buffer = Buffer.allocUnsafe(16 * 1024);
      const socket = connect({
        host,
        port,
        noDelay: true,
        onread: {
          buffer,
          callback: (length) => {
            this.#received(slot, buffer, length);
            return true;
          },
        },
      });
      slot.socket = socket;
      socket.once('connect', () => {
        slot.isConnected = true;
        resolve('');
      });
      socket.on('error', ({ code, message }: NodeJS.ErrnoException) => resolve(`${code ?? message} at the connect`));
      socket.on('close', () => {
        if (slot.isConnected) this.#closed(slot);
      });
    });
  }

  #send(slot: Slot, dueAt: number): void {
    slot.dueAt = dueAt;
    slot.inFlight = true;
    this.#open += 1;
    slot.socket!.write(slot.next());
  }

  #received(slot: Slot, buffer: Buffer, length: number): void {
    // An accepted message is answered by one small segment: a status line that begins with 2 and a head without body.
    const complete = !slot.answer.isPartial && buffer[length - 1] === lineFeed && buffer[9] === okStatus;
    const status = complete ? 200 : slot.answer.read(buffer, length);
    if (status === 0) return;
    this.#open -= 1;
    slot.inFlight = false;
    if (status === 200) {
      this.#counting.acknowledged(slot.dueAt, performance.now());
    } else {
      this.#counting.refuse(status);
    }
    this.#goOn(slot);
  }

  /** A connected slot without a request in flight takes the next one. */
  #goOn(slot: Slot): void {
    if (this.#stopping) {
      if (this.#open === 0) this.#drained();
    } else if (this.#order.rate === 0) {
      this.#send(slot, performance.now());
    } else {
      const dueAt = this.#due.shift();
      if (dueAt === undefined) this.#idle.push(slot);
      else this.#send(slot, dueAt);
    }
  }

  #schedule(dueAt: number): void {
    const slot = this.#idle.pop();
    if (slot) this.#send(slot, dueAt);
    else this.#due.push(dueAt);
  }

  #closed(slot: Slot): void {
    slot.isConnected = false;
    if (slot.inFlight) {
      slot.inFlight = false;
      this.#open -= 1;
      this.#counting.breakOff(1);
    }
    if (this.#stopping) {
      if (this.#open === 0) this.#drained();
      return;
    }
    const at = this.#idle.indexOf(slot);
    if (at >= 0) this.#idle.splice(at, 1);
    slot.answer.forget();
    void this.#connect(slot).then(() => {
      if (slot.isConnected) this.#goOn(slot);
    });
  }

  /** No more requests; waits for the answers that are still out. */
  async #stop(): Promise<void> {
    const drained = new Promise<void>((resolve) => {
      this.#drained = resolve;
    });
    this.#stopping = true;
    if (this.#open > 0) await Promise.race([drained, elapse(stallMsMax)]);
  }
}

/** A socket, the requests that are its own, and whether one is in flight. */
class Slot {
  socket: Socket | undefined;
  isConnected = false;
  dueAt = 0;
  inFlight = false;
  readonly answer = new AnswerReader();
  readonly #requests: Requests;

  constructor(requests: Requests) {
    this.#requests = requests;
  }

  next(): Buffer {
    return this.#requests.next();
  }
}

function elapse(milliseconds: number): Promise<void> {
  return new Promise((resolve) => setTimeout(resolve, milliseconds));
}

serveOrder((order: ProcessOrder, connected) => new Generator(order).run(connected));
