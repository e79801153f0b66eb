/**
 * One end of a process channel that carries bus messages beside other messages: tagged, batched by turn of the event
 * loop, and capped by the messages that the other side has not received.
 */
import type { ChildProcess } from 'node:child_process';
import type { Worker } from 'node:cluster';
import type { Counter } from '../base/metrics/metrics.ts';
import { type Scheduler, systemScheduler } from '../base/scheduler.ts';

/** `sent` is called when the system took the message, or never will. */
export interface Port {
  send(message: object, sent: () => void): void;
  onMessage(receive: (message: unknown) => void): void;
  onClose(closed: () => void): void;
}

/** Channel, payload, and whether the payload is base64 of bytes: process channels carry only strings. */
export type Entry = [channel: string, payload: string, bytes: 0 | 1];

type Message =
  | { millrace: 'bus'; verb: 'carry'; entries: Entry[] }
  | { millrace: 'bus'; verb: 'subscribe'; channel: string; id: number }
  | { millrace: 'bus'; verb: 'unsubscribe'; channel: string }
  | { millrace: 'bus'; verb: 'subscribed'; id: number }
  /** Entries to the receiver were dropped. The next ones follow this message. */
  | { millrace: 'bus'; verb: 'gap'; lost: number };

export function isBusMessage(message: unknown): message is Message {
  return typeof message === 'object' && message !== null && (message as { millrace?: unknown }).millrace === 'bus';
}

export function encodeEntry(channel: string, payload: Buffer | string): Entry {
  return typeof payload === 'string' ? [channel, payload, 0] : [channel, payload.toString('base64'), 1];
}

export function decodePayload([, payload, bytes]: Entry): Buffer {
  return Buffer.from(payload, bytes === 1 ? 'base64' : 'utf8');
}

interface PortSenderDeps {
  dropped: Counter;
  messagesMax: number;
  bytesMax: number;
  scheduler: Scheduler;
  /** Called with the number of dropped entries, once there is room for half of the most entries again. */
  onGap: (lost: number) => void;
}

/** Sends through a port. Entries and other messages leave in the order in which they came. */
export class PortSender {
  readonly #port: Port;
  readonly #deps: PortSenderDeps;
  #entries: Entry[] = [];
  #bytes = 0;
  #messages = 0;
  /** Entries that were dropped since the last gap was reported. */
  #lost = 0;
  #isScheduled = false;

  constructor(port: Port, deps: PortSenderDeps) {
    this.#port = port;
    this.#deps = deps;
  }

  /** Entries that the other side has not taken. */
  get inFlight(): number {
    return this.#messages;
  }

  /** Returns false when the other side takes too little: the message was dropped and counted, and a gap follows. */
  carry(entry: Entry): boolean {
    const { dropped, messagesMax, bytesMax, scheduler } = this.#deps;
    const bytes = bytesOf(entry);
    if (this.#messages >= messagesMax || (this.#messages > 0 && this.#bytes + bytes > bytesMax)) {
      dropped.add(1);
      this.#lost += 1;
      return false;
    }
    this.#messages += 1;
    this.#bytes += bytes;
    this.#entries.push(entry);
    if (!this.#isScheduled) {
      this.#isScheduled = true;
      scheduler.soon(this.#flushScheduled);
    }
    return true;
  }

  send(message: Message): void {
    this.#flush();
    this.#port.send(message, () => {});
  }

  readonly #flushScheduled = (): void => {
    this.#isScheduled = false;
    this.#flush();
  };

  #flush(): void {
    if (this.#entries.length === 0) return;
    const entries = this.#entries;
    this.#entries = [];
    let bytes = 0;
    for (const entry of entries) bytes += bytesOf(entry);
    this.#port.send({ millrace: 'bus', verb: 'carry', entries } satisfies Message, () => {
      this.#messages -= entries.length;
      this.#bytes -= bytes;
      this.#reportGap();
    });
  }

  /** Reports later while the queue is full: each report makes the receiver repeat its state. */
  #reportGap(): void {
    const { messagesMax, bytesMax, onGap } = this.#deps;
    if (this.#lost === 0 || this.#messages > messagesMax / 2 || this.#bytes > bytesMax / 2) return;
    const lost = this.#lost;
    this.#lost = 0;
    onGap(lost);
  }
}

function bytesOf([channel, payload]: Entry): number {
  return channel.length + payload.length;
}

/** Returns the worker's end. */
export function parentPort(): Port {
  return {
    send(message, sent) {
      if (!process.connected || !process.send) return sent();
      process.send(message, undefined, undefined, sent);
    },
    onMessage: (receive) => void process.on('message', receive),
    onClose: (closed) => void process.once('disconnect', closed),
  };
}

/** Returns the primary's end. */
export function childPort(child: ChildProcess | Worker): Port {
  const channel: ChildProcess = 'process' in child ? child.process : child;
  return {
    send(message, sent) {
      if (!channel.connected) return sent();
      channel.send(message as never, undefined, undefined, sent);
    },
    onMessage: (receive) => void channel.on('message', receive),
    onClose: (closed) => {
      channel.once('disconnect', closed);
      channel.once('exit', closed);
    },
  };
}

/** Returns two ends inside one process, for the primary's own part in the bus. */
export function portPair(): [Port, Port] {
  const receivers: [(message: unknown) => void, (message: unknown) => void] = [() => {}, () => {}];
  const end = (own: 0 | 1): Port => ({
    send(message, sent) {
      systemScheduler.soon(() => {
        receivers[own === 0 ? 1 : 0](message);
        sent();
      });
    },
    onMessage(receive) {
      receivers[own] = receive;
    },
    onClose() {},
  });
  return [end(0), end(1)];
}
