/**
 * Asks every worker of the installation, on all hosts, and collects the answers until all have answered or the deadline
 * has passed. Each worker knows the others by their announcements; a worker that misses a deadline is forgotten until
 * its next message. Without the bus only this worker answers, and `asked` is 1.
 */
import { randomUUID } from 'node:crypto';
import { limits } from '../base/limits.ts';
import { type Scheduler, systemScheduler } from '../base/scheduler.ts';
import { isObject } from '../base/schema.ts';
import type { Bus } from './bus.ts';
import { isName, isWhole, readMessage } from './messages.ts';

interface GatherDeps<Question, Answer> {
  bus: Bus;
  /** The channel of the questions; answers go to a channel of the worker that asks. */
  channel: string;
  isQuestion: (value: unknown) => value is Question;
  isAnswer: (value: unknown) => value is Answer;
  /**
   * Returns the answer of this worker. A worker that fails counts as silent for other workers; its own caller gets the
   * error.
   */
  answer: (question: Question) => Answer | Promise<Answer>;
  waitMsMax?: number;
  scheduler?: Scheduler;
}

interface Gathered<Answer> {
  answers: Answer[];
  /** The number of workers that were asked, this one included. */
  asked: number;
}

type Packet =
  | { kind: 'here'; from: string; isAsking: boolean }
  | { kind: 'gone'; from: string }
  | { kind: 'ask'; from: string; id: number; question: unknown }
  | { kind: 'answer'; from: string; id: number; answer: unknown };

function isPacket(value: unknown): value is Packet {
  if (!isObject(value) || !isName(value['from'])) return false;
  const { kind, id } = value;
  if (kind === 'here') return typeof value['isAsking'] === 'boolean';
  return kind === 'gone' || ((kind === 'ask' || kind === 'answer') && isWhole(id));
}

interface Open<Answer> {
  answers: Map<string, Answer>;
  /** Workers that have not answered. */
  awaited: Set<string>;
  end: () => void;
}

export class Gather<Question, Answer> {
  readonly #deps: GatherDeps<Question, Answer>;
  readonly #worker = randomUUID();
  /** The other workers. */
  readonly #others = new Set<string>();
  /** Questions of this worker that wait for answers. Each belongs to a REST call, and REST calls have a cap. */
  readonly #open = new Map<number, Open<Answer>>();
  #asked = 0;
  #leave: (() => void)[] = [];

  constructor(deps: GatherDeps<Question, Answer>) {
    this.#deps = deps;
  }

  async start(): Promise<void> {
    const { bus, channel } = this.#deps;
    const receive = (payload: Buffer) => this.#receive(readMessage(payload, isPacket));
    this.#leave = await Promise.all([
      bus.subscribe(channel, receive),
      bus.subscribe(this.#inboxOf(this.#worker), receive),
    ]);
    bus.onReconnect(() => this.#announce());
    this.#announce();
  }

  stop(): void {
    this.#publish(this.#deps.channel, { kind: 'gone', from: this.#worker });
    for (const leave of this.#leave.splice(0)) leave();
    for (const { end } of [...this.#open.values()]) end();
  }

  async ask(question: Question): Promise<Gathered<Answer>> {
    const { bus, channel, answer, waitMsMax = limits.gatherMsMax, scheduler = systemScheduler } = this.#deps;
    const own = Promise.resolve(answer(question));
    // The error of an answer is thrown where the answer is awaited, which may be later.
    own.catch(() => {});
    if (this.#others.size === 0 || !bus.connected) return { answers: [await own], asked: 1 + this.#others.size };
    this.#asked += 1;
    const id = this.#asked;
    const awaited = new Set(this.#others);
    const answers = new Map<string, Answer>();
    await new Promise<void>((resolve) => {
      const end = () => {
        stopTimer();
        this.#open.delete(id);
        resolve();
      };
      const stopTimer = scheduler.after(waitMsMax, end);
      this.#open.set(id, { answers, awaited, end });
      this.#publish(channel, { kind: 'ask', from: this.#worker, id, question });
    });
    for (const silent of awaited) this.#others.delete(silent);
    return { answers: [await own, ...answers.values()], asked: 1 + answers.size + awaited.size };
  }

  #announce(): void {
    this.#publish(this.#deps.channel, { kind: 'here', from: this.#worker, isAsking: true });
  }

  #publish(channel: string, packet: Packet): void {
    this.#deps.bus.publish(channel, JSON.stringify(packet));
  }

  #inboxOf(worker: string): string {
    return `${this.#deps.channel}-${worker}`;
  }

  /** Returns the promise of the answer to a question, whose error the bus counts. */
  #receive(packet: Packet): Promise<void> | undefined {
    const { from } = packet;
    if (from === this.#worker) return undefined;
    if (packet.kind === 'gone') {
      this.#forget(from);
      return undefined;
    }
    if (this.#others.size < limits.gatherWorkersMax) this.#others.add(from);
    if (packet.kind === 'here') {
      if (packet.isAsking) this.#publish(this.#inboxOf(from), { kind: 'here', from: this.#worker, isAsking: false });
    } else if (packet.kind === 'ask') {
      // A worker of another version may ask what this worker does not know: this worker then counts as silent.
      if (this.#deps.isQuestion(packet.question)) return this.#reply(from, packet.id, packet.question);
    } else {
      this.#answered(packet.id, from, packet.answer);
    }
    return undefined;
  }

  async #reply(to: string, id: number, question: Question): Promise<void> {
    const answer = await this.#deps.answer(question);
    this.#publish(this.#inboxOf(to), { kind: 'answer', from: this.#worker, id, answer });
  }

  #answered(id: number, from: string, answer: unknown): void {
    const open = this.#open.get(id);
    if (open === undefined || !this.#deps.isAnswer(answer)) return;
    open.answers.set(from, answer);
    open.awaited.delete(from);
    if (open.awaited.size === 0) open.end();
  }

  #forget(worker: string): void {
    this.#others.delete(worker);
    for (const open of [...this.#open.values()]) {
      if (open.awaited.delete(worker) && open.awaited.size === 0) open.end();
    }
  }
}
