/**
 * The loop of a generator process: sockets with one request in flight each. Closed loop (each answer sends the next
 * request) finds the peak; open loop sends at a fixed rate in bursts of one millisecond, and counts latency from the
 * millisecond in which a request was due, however late it left, so that a stalled server cannot hide its stall.
 */
import type { Socket } from 'node:net';
import { setTimeout as sleep } from 'node:timers/promises';
import { Counting } from './counting.ts';
import type { Course } from './generator-process.ts';
import { openSocket, type Place } from './open-socket.ts';
import { DueTimes, Pace } from './pace.ts';
import type { ProcessResult } from './processes.ts';

export interface LoopOrder extends Place {
  /** Requests/s of this process; 0 = as fast as answers come. */
  rate: number;
  /** Time before the warm-up in which the rate grows from 0. */
  rampMs: number;
  warmupMs: number;
  durationMs: number;
}

/** The requests of one socket. */
export interface Requests {
  /** The bytes of the next message; valid until the following call, which must wait for its answer. */
  next(): Buffer;
}

/** The requests of several devices, one after the other. */
export class InTurn implements Requests {
  readonly #requests: Requests[];
  #turn = 0;

  constructor(requests: Requests[]) {
    this.#requests = requests;
  }

  next(): Buffer {
    this.#turn = this.#turn + 1 < this.#requests.length ? this.#turn + 1 : 0;
    return this.#requests[this.#turn]!.next();
  }
}

/** Puts the answers on one socket together. */
export interface Reader {
  /** Returns 0 while the answer is not whole, `accepted`, or the reason of a refusal. */
  read(buffer: Buffer, length: number): number | string;
  /** Starts again, for a new connection. */
  forget(): void;
}

export const accepted = 200;

/** What one socket sends and receives. */
export interface Conversation {
  /** Sent at each connect, and answered before the first request; undefined = the protocol has no greeting. */
  greeting?: Buffer;
  requests: Requests;
  reader: Reader;
}

const stallMsMax = 30_000;
/** An attempt to connect, with the handshake of TLS and the answer to a greeting, has failed after so long. */
const connectMsMax = 20_000;
const noConnection = `no connection within ${connectMsMax / 1000} s`;
const connectTriesMax = 20;
const retryMs = 500;
/**
 * A server closes a socket that is idle for seconds, which may meet a request on its way and then counts as a broken
 * connection. So the sockets are used in turn when each of them then rests no longer than this.
 */
const restMsMax = 2_000;

export class Loop {
  readonly #order: LoopOrder;
  readonly #slots: Slot[];
  readonly #idle: Slot[] = [];
  readonly #due = new DueTimes();
  readonly #counting: Counting;
  #hasBegun = false;
  /** True when the rate is high enough for all sockets in turn; else few sockets carry it, and the others are idle. */
  readonly #usesAll: boolean;
  /** An attempt had no answer before the run: further attempts would wait as long for nothing. */
  #isSilent = false;
  #stopping = false;
  #open = 0;
  #drained: () => void = () => {};

  constructor(order: LoopOrder, conversations: Conversation[]) {
    this.#order = order;
    this.#counting = new Counting(
      () => this.#due.length,
      () => this.#open,
    );
    this.#slots = conversations.map((conversation) => new Slot(conversation));
    this.#usesAll = (this.#slots.length / order.rate) * 1000 < restMsMax;
  }

  async run({ connected, stopped }: Course): Promise<ProcessResult> {
    const { rate, rampMs, warmupMs, durationMs } = this.#order;
    const slots = this.#slots;
    await Promise.all(slots.map((slot) => this.#connect(slot)));
    await connected(slots.filter(({ isConnected }) => isConnected).length);
    this.#hasBegun = true;
    const startedAt = this.#counting.begin();
    const pace = new Pace({ rate, rampMs });
    const ready = slots.filter(({ isConnected }) => isConnected);
    if (rate > 0) {
      this.#idle.push(...ready);
      pace.start(startedAt, (dueAt) => this.#schedule(dueAt));
    } else {
      for (const slot of ready) this.#send(slot, performance.now());
    }
    await this.#counting.measure({ leadMs: rampMs + warmupMs, measured: () => sleep(durationMs), stopped });
    pace.stop();
    await this.#stop(stopped);
    return this.#counting.end();
  }

  /**
   * A refused attempt is counted and repeated. A socket that is refused each time before the run sends nothing; in the
   * run the attempts go on to its end.
   */
  async #connect(slot: Slot): Promise<void> {
    for (let tries = 0; (tries < connectTriesMax || this.#hasBegun) && !this.#stopping; tries += 1) {
      const fault = await this.#attempt(slot);
      if (fault === '') return;
      this.#counting.refuse(fault);
      if (fault === noConnection && !this.#hasBegun) this.#isSilent = true;
      if (this.#isSilent && !this.#hasBegun) return;
      await sleep(retryMs * (0.5 + Math.random()));
    }
  }

  /** Resolves with '' when connected, else with the reason. */
  #attempt(slot: Slot): Promise<string> {
    slot.reader.forget();
    return new Promise((resolve) => {
      const buffer = Buffer.allocUnsafe(16 * 1024);
      const callback = (length: number) => {
        this.#received(slot, buffer, length);
        return true;
      };
      const socket = openSocket(this.#order, { buffer, callback }, () => {
        if (slot.greeting === undefined) slot.greeted('');
        else socket.write(slot.greeting);
      });
      slot.socket = socket;
      const deadline = setTimeout(() => slot.greeted(noConnection), connectMsMax);
      slot.greeted = (fault) => {
        clearTimeout(deadline);
        slot.isConnected = fault === '';
        if (fault !== '') socket.destroy();
        resolve(fault);
      };
      socket.on('error', ({ code, message }: NodeJS.ErrnoException) => resolve(`${code ?? message} at the connect`));
      socket.on('close', () => {
        clearTimeout(deadline);
        if (slot.isConnected) this.#closed(slot);
        else resolve('closed at the connect');
      });
    });
  }

  #send(slot: Slot, dueAt: number): void {
    slot.dueAt = dueAt;
    slot.inFlight = true;
    this.#open += 1;
    slot.socket!.write(slot.next());
    if (this.#order.rate > 0) this.#counting.sent(dueAt, performance.now());
  }

  #received(slot: Slot, buffer: Buffer, length: number): void {
    const status = slot.reader.read(buffer, length);
    if (status === 0) return;
    if (!slot.isConnected) {
      slot.greeted(status === accepted ? '' : `${status} at the connect`);
      return;
    }
    // A server that closes an idle connection may say why.
    if (!slot.inFlight) {
      this.#counting.refuse(status);
      return;
    }
    this.#open -= 1;
    slot.inFlight = false;
    if (status === accepted) this.#counting.acknowledged(slot.dueAt, performance.now());
    else this.#counting.refuse(status);
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
    const slot = this.#usesAll ? this.#idle.shift() : this.#idle.pop();
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
    void this.#connect(slot).then(() => {
      if (slot.isConnected) this.#goOn(slot);
    });
  }

  /** No more requests; waits for the answers that are still out, unless the load is stopped. */
  async #stop(stopped: Promise<void>): Promise<void> {
    const drained = new Promise<void>((resolve) => {
      this.#drained = resolve;
    });
    this.#stopping = true;
    if (this.#open > 0) await Promise.race([drained, stopped, sleep(stallMsMax)]);
    this.#counting.giveUp(this.#open);
  }
}

/** A socket, its requests, and whether one is in flight. */
class Slot {
  socket: Socket | undefined;
  isConnected = false;
  dueAt = 0;
  inFlight = false;
  greeted: (fault: string) => void = () => {};
  readonly greeting: Buffer | undefined;
  readonly reader: Reader;
  readonly #requests: Requests;

  constructor({ greeting, requests, reader }: Conversation) {
    this.greeting = greeting;
    this.reader = reader;
    this.#requests = requests;
  }

  next(): Buffer {
    return this.#requests.next();
  }
}
