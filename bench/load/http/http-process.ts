/**
 * One generator process: keep-alive sockets with one request in flight each. Closed loop (each answer sends the next
 * request) finds the peak; open loop sends at a fixed rate in bursts of one millisecond, and counts latency from the
 * millisecond in which a request was due, however late it left, so that a stalled server cannot hide its stall.
 */
import { connect, type Socket } from 'node:net';
import { serveOrder, Tenths } from '../generator-process.ts';
import { Histogram } from '../histogram.ts';
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
  warmupMs: number;
  durationMs: number;
  firstTs: number;
  stepMs: number;
  kind: MessageKind;
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

class Generator {
  readonly #order: ProcessOrder;
  readonly #histogram = new Histogram();
  readonly #idle: Slot[] = [];
  /** Due times of requests that wait for a free socket, oldest first. */
  #due: number[] = [];
  #dueHead = 0;
  #stopping = false;
  #open = 0;
  #measuring = false;
  #accepted = 0;
  #measured = 0;
  #broken = 0;
  #tenths: Tenths | undefined;
  readonly #refused: Record<string, number> = {};
  #drained: () => void = () => {};

  constructor(order: ProcessOrder) {
    this.#order = order;
  }

  async run(connected: () => Promise<void>): Promise<HttpProcessResult> {
    const { sockets, tokens, firstTs, stepMs, kind, drawn, rate, warmupMs, durationMs } = this.#order;
    const requests = drawn
      ? []
      : tokens.map((token, n) => new DeviceRequest(token, firstTs, stepMs, n * 2_654_435_761, kind));
    const all = { tokens, sent: new Uint32Array(tokens.length), firstTs, stepMs };
    const slots = Array.from({ length: sockets }, (_, n) => {
      if (drawn) return new Slot(new DrawnRequests(all, n * 2_654_435_761));
      // Each device belongs to one socket: its buffer is never changed while it is being sent.
      return new Slot(new InTurn(requests.filter((__, device) => device % sockets === n)));
    });
    await Promise.all(slots.map((slot) => this.#connect(slot)));
    await connected();
    const tenths = new Tenths();
    this.#tenths = tenths;
    const cpuAtStart = process.cpuUsage();
    const startedAt = performance.now();
    if (rate > 0) {
      this.#idle.push(...slots);
      this.#paceFrom(startedAt, rate);
    } else {
      for (const slot of slots) this.#send(slot, performance.now());
    }
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
      lastTs: requests.flatMap((request, n) => (request.sent > 0 ? [[tokens[n]!, request.ts]] : [])),
      counts: [...this.#histogram.counts],
      maxMicroseconds: this.#histogram.max,
      cpuMs: (cpu.user + cpu.system) / 1000,
      elapsedMs: performance.now() - startedAt,
      tenths: tenths.counts,
      startedAtMs: tenths.startedAtMs,
    };
  }

  #connect(slot: Slot): Promise<void> {
    const { host, port } = this.#order;
    return new Promise((resolve, reject) => {
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
      socket.once('connect', resolve);
      socket.on('error', reject);
      socket.on('close', () => this.#closed(slot));
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
      const now = performance.now();
      this.#accepted += 1;
      this.#tenths!.add(now);
      if (this.#measuring) {
        this.#measured += 1;
        this.#histogram.record((now - slot.dueAt) * 1000);
      }
    } else {
      this.#refused[status] = (this.#refused[status] ?? 0) + 1;
    }
    if (this.#stopping) {
      if (this.#open === 0) this.#drained();
    } else if (this.#order.rate === 0) {
      this.#send(slot, performance.now());
    } else if (this.#dueHead < this.#due.length) {
      this.#send(slot, this.#due[this.#dueHead++]!);
    } else {
      this.#idle.push(slot);
    }
  }

  /** One tick a millisecond; a late tick catches up, with the due times it should have had. */
  #paceFrom(startedAt: number, rate: number): void {
    let scheduled = 0;
    let ticks = 0;
    const tick = (): void => {
      if (this.#stopping) return;
      const now = performance.now();
      for (; startedAt + ticks <= now; ticks += 1) {
        const target = Math.floor(((ticks + 1) * rate) / 1000);
        for (; scheduled < target; scheduled += 1) this.#schedule(startedAt + ticks);
      }
      if (this.#dueHead > 65_536) {
        this.#due = this.#due.slice(this.#dueHead);
        this.#dueHead = 0;
      }
      setTimeout(tick, 1);
    };
    tick();
  }

  #schedule(dueAt: number): void {
    const slot = this.#idle.pop();
    if (slot) this.#send(slot, dueAt);
    else this.#due.push(dueAt);
  }

  #closed(slot: Slot): void {
    if (slot.inFlight) {
      slot.inFlight = false;
      this.#open -= 1;
      this.#broken += 1;
    }
    if (this.#stopping) {
      if (this.#open === 0) this.#drained();
      return;
    }
    const at = this.#idle.indexOf(slot);
    if (at >= 0) this.#idle.splice(at, 1);
    slot.answer.forget();
    this.#connect(slot).then(
      () => (this.#order.rate === 0 ? this.#send(slot, performance.now()) : this.#idle.push(slot)),
      () => {},
    );
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
