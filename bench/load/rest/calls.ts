/**
 * Callers of the REST API: keep-alive sockets with one call in flight each. Closed loop (each answer makes room for the
 * next call) finds the rate; open loop offers a fixed one, and a latency counts from the moment at which the call was
 * due, so that a late one is not hidden. Each call judges the content of its own answer, as soon as the answer arrives.
 */
import { connect, type Socket } from 'node:net';
import { setTimeout as sleep } from 'node:timers/promises';
import { totalOf } from '../counts.ts';
import { Histogram, type LatencySummary, summaryOf } from '../histogram.ts';
import { AnswerReader } from '../http/answer-reader.ts';

/** The outcome of a call whose answer is as it must be. */
export const right = 'right';

export interface Call {
  request: Buffer;
  outcomeOf(status: number, body: string): string;
}

export interface CallOrder {
  port: number;
  connections: number;
  /** Calls/s; 0 = closed loop. */
  rate: number;
  warmupSeconds: number;
  /** Infinity: as long as there are calls. */
  seconds: number;
  /** The call with this number; undefined = there are no more. */
  callOf(n: number): Call | undefined;
  /** Called for each answer, also in the warm-up. */
  seen?: (outcome: string, microseconds: number) => void;
}

export interface Outcome extends LatencySummary {
  count: number;
  perSecond: number;
}

export interface CallsResult {
  /** Outcomes of the calls that were due in the measured time. */
  outcomes: Record<string, Outcome>;
  /** Calls without an answer: the connection broke, or the answer did not arrive in time. */
  unanswered: number;
  /** Connects that failed and were tried again, by their reason. */
  refused: Record<string, number>;
  /** Share of one core. */
  clientCpuShare: number;
}

const endMsMax = 30_000;
const connectMsMax = 20_000;
/** Calls that have no end by themselves end when none was answered for so long. */
const silenceMsMax = 60_000;
const connectTriesMax = 20;
const retryMs = 500;

/** `waitMsMax`: for any answer. */
export function makeCalls(order: CallOrder, waitMsMax?: number): Promise<CallsResult> {
  return new Callers(order, waitMsMax).run();
}

/** Counts the calls with a right answer and those without; a refused connect belongs to the latter. */
export function judged({ outcomes, unanswered, refused }: CallsResult): { answered: Outcome; failed: number } {
  const { [right]: answered = { count: 0, perSecond: 0, ...summaryOf(new Histogram()) }, ...others } = outcomes;
  const failed = Object.values(others).reduce((sum, { count }) => sum + count, unanswered + totalOf(refused));
  return { answered, failed };
}

interface Caller {
  socket: Socket | undefined;
  answer: AnswerReader;
  /** The call in flight. */
  call: Call | undefined;
  dueAt: number;
}

class Callers {
  readonly #order: CallOrder;
  readonly #silenceMsMax: number;
  #answeredAt = 0;
  readonly #callers: Caller[];
  readonly #idle: Caller[] = [];
  /** Due times of calls that wait for a free connection. */
  readonly #due: number[] = [];
  readonly #histograms: Record<string, Histogram> = {};
  #measuredFrom = 0;
  #made = 0;
  #inFlight = 0;
  #unanswered = 0;
  readonly #refused: Record<string, number> = {};
  /** Callers whose attempts to connect were all refused. */
  #lost = 0;
  /** No more calls become due. */
  #ending = false;
  #closed = false;

  constructor(order: CallOrder, waitMsMax = silenceMsMax) {
    this.#order = order;
    this.#silenceMsMax = waitMsMax;
    this.#callers = Array.from({ length: order.connections }, () => {
      return { socket: undefined, answer: new AnswerReader(), call: undefined, dueAt: 0 };
    });
  }

  async run(): Promise<CallsResult> {
    const { rate, warmupSeconds, seconds } = this.#order;
    await Promise.all(this.#callers.map((caller) => this.#connect(caller)));
    this.#idle.push(...this.#callers.filter(({ socket }) => socket !== undefined));
    const cpuAtStart = process.cpuUsage();
    const begin = performance.now();
    this.#measuredFrom = begin + warmupSeconds * 1000;
    this.#answeredAt = begin;
    if (rate > 0) await this.#pace(begin, rate, this.#measuredFrom + seconds * 1000);
    else await this.#repeat(this.#measuredFrom + seconds * 1000);
    this.#ending = true;
    const deadline = performance.now() + (this.#isSilent() ? 0 : endMsMax);
    while (this.#inFlight + this.#due.length > 0 && performance.now() < deadline) await sleep(1);
    const endedAt = performance.now();
    const cpu = process.cpuUsage(cpuAtStart);
    this.#closed = true;
    for (const { socket } of this.#callers) socket?.destroy();
    const measuredSeconds = Math.min(seconds, (endedAt - this.#measuredFrom) / 1000);
    const outcomes = Object.entries(this.#histograms).map(([outcome, histogram]) => {
      const count = histogram.total;
      return [outcome, { count, perSecond: count / measuredSeconds, ...summaryOf(histogram) }] as const;
    });
    return {
      outcomes: Object.fromEntries(outcomes),
      unanswered: this.#unanswered + this.#inFlight + this.#due.length,
      refused: this.#refused,
      clientCpuShare: (cpu.user + cpu.system) / 1000 / (endedAt - begin),
    };
  }

  /** A run with an end waits for it, also beside a server that is silent for a while. */
  #isSilent(): boolean {
    if (Number.isFinite(this.#order.seconds) || this.#inFlight === 0) return false;
    return performance.now() - this.#answeredAt > this.#silenceMsMax;
  }

  async #pace(begin: number, rate: number, until: number): Promise<void> {
    let offered = 0;
    while (!this.#ending && performance.now() < until && !this.#isSilent()) {
      for (; performance.now() - begin >= (offered * 1000) / rate; offered += 1) {
        this.#due.push(begin + (offered * 1000) / rate);
        if (this.#idle.length > 0) this.#next(this.#idle.shift()!);
      }
      await sleep(1);
    }
  }

  async #repeat(until: number): Promise<void> {
    for (const caller of this.#idle.splice(0)) this.#next(caller);
    while (!this.#ending && performance.now() < until && !this.#isSilent()) await sleep(10);
  }

  /**
   * Counts a refused attempt and repeats it. A caller whose attempts are all refused makes no more calls, and the run
   * ends when that is so for each.
   */
  async #connect(caller: Caller): Promise<void> {
    for (let tries = 0; tries < connectTriesMax && !this.#closed; tries += 1) {
      const fault = await this.#attempt(caller);
      if (fault === '') return;
      this.#refused[fault] = (this.#refused[fault] ?? 0) + 1;
      await sleep(retryMs * (0.5 + Math.random()));
    }
    this.#lost += 1;
    if (this.#lost < this.#callers.length) return;
    this.#ending = true;
    this.#unanswered += this.#due.splice(0).length;
  }

  /** Resolves with '' when connected, else with the reason. */
  #attempt(caller: Caller): Promise<string> {
    return new Promise((resolve) => {
      const deadline = setTimeout(() => {
        resolve(`no connection within ${connectMsMax / 1000} s`);
        socket.destroy();
      }, connectMsMax);
      const buffer = Buffer.allocUnsafe(64 * 1024);
      const callback = (length: number) => {
        this.#received(caller, buffer, length);
        return true;
      };
      const socket = connect({
        port: this.#order.port,
        host: '127.0.0.1',
        noDelay: true,
        onread: { buffer, callback },
      });
      caller.answer.forget();
      socket.on('error', ({ code, message }: NodeJS.ErrnoException) => resolve(`${code ?? message} at the connect`));
      socket.once('close', () => clearTimeout(deadline));
      socket.once('connect', () => {
        clearTimeout(deadline);
        caller.socket = socket;
        socket.once('close', () => this.#broke(caller));
        resolve('');
      });
    });
  }

  /** Makes the next call on a free connection, if there is one. */
  #next(caller: Caller): void {
    const dueAt = this.#order.rate > 0 ? this.#due.shift() : this.#ending ? undefined : performance.now();
    const call = dueAt === undefined ? undefined : this.#order.callOf(this.#made);
    if (dueAt === undefined) this.#idle.push(caller);
    else if (call === undefined) this.#ending = true;
    else {
      this.#made += 1;
      this.#inFlight += 1;
      caller.call = call;
      caller.dueAt = dueAt;
      caller.socket!.write(call.request);
    }
  }

  #received(caller: Caller, buffer: Buffer, length: number): void {
    const { call, dueAt, answer } = caller;
    const status = answer.read(buffer, length);
    if (status === 0 || call === undefined) return;
    this.#answeredAt = performance.now();
    const microseconds = (this.#answeredAt - dueAt) * 1000;
    const outcome = call.outcomeOf(status, answer.body.toString());
    this.#order.seen?.(outcome, microseconds);
    if (dueAt >= this.#measuredFrom) (this.#histograms[outcome] ??= new Histogram()).record(microseconds);
    caller.call = undefined;
    this.#inFlight -= 1;
    this.#next(caller);
  }

  #broke(caller: Caller): void {
    if (this.#closed) return;
    if (caller.call) {
      caller.call = undefined;
      this.#inFlight -= 1;
      this.#unanswered += 1;
    }
    const at = this.#idle.indexOf(caller);
    if (at >= 0) this.#idle.splice(at, 1);
    caller.socket = undefined;
    void this.#connect(caller).then(() => {
      if (caller.socket !== undefined) this.#next(caller);
    });
  }
}
