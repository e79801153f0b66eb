/**
 * One channel of the bus on which processes send JSON of one shape to all other processes. A process does not receive
 * its own messages.
 */
import { randomUUID } from 'node:crypto';
import { isObject } from '../base/schema.ts';
import type { Bus } from './bus.ts';
import { isName, readMessage } from './messages.ts';

interface JsonChannelDeps<Content extends object> {
  bus: Bus;
  channel: string;
  isContent: (value: object) => value is Content;
  /** `from`: the `process` of the sender. */
  onMessage: (content: Content, from: string) => void;
}

export class JsonChannel<Content extends object> {
  /** Names this process in its messages. */
  readonly process: string = randomUUID();
  readonly #deps: JsonChannelDeps<Content>;
  #unsubscribe: (() => void) | undefined;

  constructor(deps: JsonChannelDeps<Content>) {
    this.#deps = deps;
  }

  async start(): Promise<void> {
    const { bus, channel } = this.#deps;
    this.#unsubscribe = await bus.subscribe(channel, (payload) => this.#receive(payload));
  }

  stop(): void {
    this.#unsubscribe?.();
  }

  publish(content: Content): void {
    const { bus, channel } = this.#deps;
    bus.publish(channel, JSON.stringify({ from: this.process, ...content }));
  }

  #receive(payload: Buffer): void {
    const message = readMessage(payload, this.#isMessage);
    if (message.from !== this.process) this.#deps.onMessage(message, message.from);
  }

  readonly #isMessage = (value: unknown): value is Content & { from: string } =>
    isObject(value) && isName(value['from']) && this.#deps.isContent(value);
}
